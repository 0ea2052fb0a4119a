"""One run over two nodes, as torchrun starts it there: two agents on the loopback, one of whose workers is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from torch.distributed import TCPStore

from lesam.lab.runs.folder import RunFolder
from tests.lab.execution.conftest import LONG, wait_for
from tests.lab.running import assert_same_run

SETTINGS = [part for change in ("schedule.epochs=60", *LONG[1:]) for part in ("--set", change)]


@pytest.fixture
def meeting() -> TCPStore:
    """Where agents meet: if one of them kept it, the other would fail where that one ends first."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def agents(meeting: TCPStore, runs: Path) -> list[subprocess.Popen[str]]:
    """What is started on each of the nodes: the same command, with the address where they meet."""
    launcher = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=1"]
    launcher += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{meeting.port}", "--rdzv-conf=is_host=0"]
    launcher += [f"--rdzv-id={runs.name}"]
    train = ["-m", "lesam", "train", "digits", "--scale", "smoke", "--accelerator", "cpu", *SETTINGS]
    command = [sys.executable, *launcher, *train, "--runs", str(runs)]
    return [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]


def ended(started: list[subprocess.Popen[str]]) -> None:
    outputs = [agent.communicate(timeout=240)[0] for agent in started]
    assert [agent.returncode for agent in started] == [0, 0], outputs


def folder(runs: Path) -> RunFolder | None:
    return next((RunFolder(file.parent) for file in runs.glob("*/config.json")), None)


def test_a_run_whose_worker_is_killed_is_restarted_and_resumes(tmp_path: Path, meeting: TCPStore) -> None:
    ended(agents(meeting, tmp_path / "undisturbed"))
    started = agents(meeting, tmp_path / "disturbed")
    wait_for(lambda: (run := folder(tmp_path / "disturbed")) is not None and len(run.metrics()) > 15)
    (worker,) = psutil.Process(started[1].pid).children()
    worker.send_signal(signal.SIGKILL)
    ended(started)
    disturbed, undisturbed = folder(tmp_path / "disturbed"), folder(tmp_path / "undisturbed")
    assert disturbed is not None
    assert undisturbed is not None
    assert [len(run.environments()) for run in (disturbed, undisturbed)] == [2, 1]
    assert disturbed.environments()[0]["world_size"] == 2
    assert_same_run(disturbed, undisturbed)
