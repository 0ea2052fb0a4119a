"""One run over two nodes, as torchrun starts it there: two agents on the loopback, one of whose workers is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import TCPStore

from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs.folder import RunFolder
from tests.lab.execution.conftest import wait_for
from tests.lab.running import assert_same_run

SETTINGS = (
    *("schedule.epochs=30", "data.options.train_size=100", "optimizer.base=adamw"),
    *("record.evaluate_every=10", "record.checkpoint_every=3", "record.keep=2"),
)


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}  # sums of several threads have other last bits


@contextmanager
def agents(runs: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """What is started on each of the nodes: the same command, with the address where they meet."""
    # If one of them kept the place where they meet, the other would fail where that one ends first.
    meeting = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command = torchrun(
        runs,
        *("--nnodes=2", "--nproc-per-node=1", "--max-restarts=1", "--rdzv-backend=c10d", "--rdzv-id=run"),
        *(f"--rdzv-endpoint=127.0.0.1:{meeting.port}", "--rdzv-conf=is_host=0", "--local-addr=127.0.0.1"),
    )
    # As the page on many machines says; with torch's shared store, restarted workers may wait for each other for ever.
    environment = {**ENVIRONMENT, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with ExitStack() as stack:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started = [stack.enter_context(subprocess.Popen(command, env=environment, **pipes)) for _ in range(2)]
        try:
            yield started
            outputs = [agent.communicate(timeout=240)[0] for agent in started]
            assert [agent.returncode for agent in started] == [0, 0], outputs
        finally:
            for agent in started:
                agent.kill()


def torchrun(runs: Path, *options: str) -> list[str]:
    changes = [part for change in SETTINGS for part in ("--set", change)]
    train = ["-m", "lesam", "train", "digits", "--scale", "smoke", "--accelerator", "cpu", "--strategy", "fsdp"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--monitor-interval=0.1", *options]
    return [*launcher, *train, *changes, "--runs", str(runs)]


def folder(runs: Path) -> RunFolder | None:
    return next((RunFolder(file.parent) for file in runs.glob("*/config.json")), None)


def test_a_run_whose_worker_is_killed_is_restarted_and_resumes_from_its_shards(tmp_path: Path) -> None:
    """With FSDP2 and BatchNorm: weights, state and running statistics, of which each process has a part or its own."""
    whole = torchrun(tmp_path / "undisturbed", "--standalone", "--nproc-per-node=2")
    subprocess.run(whole, env=ENVIRONMENT, check=True, timeout=240)
    with agents(tmp_path / "disturbed") as started:
        wait_for(lambda: (run := folder(tmp_path / "disturbed")) is not None and len(run.metrics()) > 4)
        (worker,) = psutil.Process(started[1].pid).children()
        worker.send_signal(signal.SIGKILL)
    disturbed, undisturbed = folder(tmp_path / "disturbed"), folder(tmp_path / "undisturbed")
    assert disturbed is not None
    assert undisturbed is not None
    assert [len(run.environments()) for run in (disturbed, undisturbed)] == [2, 1]
    assert disturbed.environments()[0]["world_size"] == 2
    assert_same_run(disturbed, undisturbed)
    _each_process_has_written_its_part(undisturbed)


def _each_process_has_written_its_part(run: RunFolder) -> None:
    *before, last = checkpoints.listed(run.checkpoints)
    weights = load_file(last.path / "weights.safetensors")  # at the end they are whole as well
    assert last.weights().keys() == weights.keys()
    sizes = [sum(tensor.nbytes for tensor in load_file(file).values()) for file in sorted(last.path.glob("shards/*"))]
    assert len(sizes) == 2
    assert max(sizes) < 0.6 * sum(sizes)
    # Weights, and AdamW's two averages of them.
    parameters = sum(tensor.nbytes for name, tensor in weights.items() if tensor.is_floating_point())
    assert sum(sizes) == pytest.approx(3 * parameters, rel=0.02)
    earlier = before[-1]
    assert not (earlier.path / "weights.safetensors").exists()
    assert {name: tensor.shape for name, tensor in earlier.weights().items()} == {
        name: tensor.shape for name, tensor in weights.items()
    }
    assert all(torch.isfinite(tensor).all() for tensor in earlier.weights().values())
    (last.path / "shards" / "shard-00002-model-00001-of-00001.safetensors").write_bytes(b"")
    newest, complaints = checkpoints.newest_valid(run.checkpoints)
    assert newest == earlier
    assert "shard-00002" in complaints[0]
    min(earlier.path.glob("shards/*")).unlink()
    assert "shard-00001-model-00001-of-00001.safetensors is missing" in str(earlier.damage())
