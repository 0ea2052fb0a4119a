"""Killed, damaged, interrupted: the run that resumes ends in exactly the weights of one that never stopped."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lesam.lab import recipes
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs.folder import RunFolder
from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Silent
from tests.lab.running import BreakOff, Listener, assert_same_run, last_checkpoint

# Momentum-like state of its own (Friendly-SAM), a mask per step (ESAM), the paper's method; checkpoints inside epochs.
SETTINGS = ("schedule.epochs=30", "record.checkpoint_steps=2", "record.steps_every=2")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(method: str, runs: Path) -> list[str]:
    changes = [part for setting in SETTINGS for part in ("--set", setting)]
    return [
        *(sys.executable, "-m", "lesam", "train", "digits", "--method", method, "--scale", "smoke"),
        *("-o", str(runs), "--accelerator", "cpu", *changes),
    ]


def config_of(method: str) -> RunConfig:
    return override(recipes.build("digits", method=method, scale="smoke"), [*SETTINGS, "system.accelerator=cpu"])


@pytest.mark.parametrize("method", ["friendlysam", "esam"])  # what remembers, and what draws
def test_killed_again_and_again(method: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    whole = RunFolder.of(config_of(method), tmp_path / "whole")
    train(config_of(method), runs=tmp_path / "whole", progress=Silent())
    broken = RunFolder.of(config_of(method), tmp_path / "broken")
    moments, kills = random.Random(method), 0
    while broken.summary() is None:
        with (tmp_path / "log").open("a") as log:
            process = subprocess.Popen(
                command(method, tmp_path / "broken"), env=ENVIRONMENT, stdout=log, stderr=subprocess.STDOUT
            )
        if kills < 3:
            before = len(list(broken.checkpoints.glob("step-*"))) and _newest_step(broken)
            _wait_until(lambda before=before: _newest_step(broken) > before, process)  # it got somewhere new
            time.sleep(moments.uniform(0.0, 0.15))
            process.kill()
            kills += process.wait() == -signal.SIGKILL
        else:
            assert process.wait() == 0, (tmp_path / "log").read_text()
    assert kills == 3, "the run was too quick to be killed"
    assert_same_run(whole, broken)
    assert last_checkpoint(broken).epoch == 30
    assert len((broken.path / "metrics.csv").read_text().splitlines()) == 1 + 30
    assert len(broken.environments()) == kills + 1


def _newest_step(folder: RunFolder) -> int:
    return max((item.step for item in checkpoints.listed(folder.checkpoints)), default=0)


def _wait_until(condition, process: subprocess.Popen[bytes]) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 120
    while not condition() and process.poll() is None:
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.005)


def test_sigint_stops_with_a_checkpoint_and_the_same_command_resumes(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    train(config_of("lesam"), runs=tmp_path / "whole", progress=Silent())
    folder = RunFolder.of(config_of("lesam"), tmp_path / "broken")
    process = subprocess.Popen(
        command("lesam", tmp_path / "broken"), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _wait_until(lambda: _newest_step(folder) >= 10, process)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"stopped at step" in complaint
    stopped_at = _newest_step(folder)
    assert f"stopped at step {stopped_at} ".encode() in complaint
    assert folder.summary() is None
    again = subprocess.run(command("lesam", tmp_path / "broken"), env=ENVIRONMENT, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert f"resumed at step {stopped_at}" in again.stdout
    assert_same_run(RunFolder.of(config_of("lesam"), tmp_path / "whole"), folder)
    assert len((folder.path / "metrics.csv").read_text().splitlines()) == 1 + 30
    third = subprocess.run(command("lesam", tmp_path / "broken"), env=ENVIRONMENT, capture_output=True, text=True)
    assert "is finished; nothing to do" in third.stdout
    assert len(folder.environments()) == 2


@pytest.mark.parametrize("name", ["weights.safetensors", "state.pt", "manifest.json"])
def test_a_damaged_checkpoint_is_named_and_an_older_one_used(name: str, tmp_path: Path) -> None:
    config = override(recipes.build("digits", method="lesam", scale="smoke"), ["schedule.epochs=6"])
    config = override(config, ["record.checkpoint_every=1", "record.keep=2"])
    train(config, runs=tmp_path / "whole", progress=Silent())
    with pytest.raises(ConnectionError):
        train(config, runs=tmp_path / "broken", progress=BreakOff(epochs=4))
    folder = RunFolder.of(config, tmp_path / "broken")
    older, newest = checkpoints.listed(folder.checkpoints)
    data = bytearray((newest.path / name).read_bytes())
    data[len(data) // 2] ^= 0xFF
    (newest.path / name).write_bytes(data)

    listener = Listener()
    train(config, runs=tmp_path / "broken", progress=listener)
    assert any(newest.path.name in text and "damaged" in text for text in listener.messages)
    ours, theirs = (
        load_file(RunFolder.of(config, tmp_path / where).checkpoints / "step-00000018" / "weights.safetensors")
        for where in ("whole", "broken")
    )
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert [row["epoch"] for row in folder.metrics()] == list(range(6))
    assert older.epoch == 3


def test_where_every_checkpoint_is_damaged_that_is_said_and_the_old_rows_are_kept(tmp_path: Path) -> None:
    config = override(recipes.build("digits", method="sgd", scale="smoke"), ["schedule.epochs=4"])
    config = override(config, ["record.checkpoint_every=1", "record.keep=2"])
    with pytest.raises(ConnectionError):
        train(config, runs=tmp_path, progress=BreakOff(epochs=3))
    folder = RunFolder.of(config, tmp_path)
    for item in checkpoints.listed(folder.checkpoints):
        (item.path / "state.pt").write_bytes(b"")
    rows = {name: (folder.path / name).read_bytes() for name in ("metrics.jsonl", "steps.jsonl")}
    listener = Listener()
    train(config, runs=tmp_path, progress=listener)
    assert not any("using an older one" in text for text in listener.messages)
    assert sum("none is left" in text for text in listener.messages) == 2
    assert any(str(folder.path / "earlier" / "1") in text for text in listener.messages)
    for name, content in rows.items():
        assert (folder.path / "earlier" / "1" / name).read_bytes() == content
    assert [row["epoch"] for row in folder.metrics()] == [0, 1, 2, 3]


def test_a_torn_line_of_metrics_does_not_survive(tmp_path: Path) -> None:
    config = override(recipes.build("digits", method="sgd", scale="smoke"), ["schedule.epochs=4"])
    config = override(config, ["record.checkpoint_every=1"])
    with pytest.raises(ConnectionError):
        train(config, runs=tmp_path, progress=BreakOff(epochs=2))
    folder = RunFolder.of(config, tmp_path)
    for name in ("metrics.jsonl", "steps.jsonl"):
        with (folder.path / name).open("a") as file:
            file.write('{"epoch": 2, "st')
    train(config, runs=tmp_path, progress=Silent())
    assert [row["epoch"] for row in folder.metrics()] == [0, 1, 2, 3]
    assert [row["step"] for row in folder.steps()] == sorted({row["step"] for row in folder.steps()})
    for line in (folder.path / "metrics.jsonl").read_text().splitlines():
        json.loads(line)


def test_two_processes_do_not_train_one_run(tmp_path: Path) -> None:
    config = recipes.build("digits", method="sgd", scale="smoke")
    with RunFolder.of(config, tmp_path).lock(), pytest.raises(RuntimeError, match="another process is training"):
        train(config, runs=tmp_path, progress=Silent())
