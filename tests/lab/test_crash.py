"""Killed, damaged, interrupted: the run that goes on ends in exactly the weights of one that never stopped."""

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

# Momentum-like state of its own (Friendly-SAM), a mask per step (ESAM), the paper's method; checkpoints inside epochs.
SETTINGS = ("schedule.epochs=30", "record.checkpoint_steps=2", "record.steps_every=2")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(method: str, runs: Path) -> list[str]:
    changes = [part for setting in SETTINGS for part in ("--set", setting)]
    return [
        *(sys.executable, "-m", "lesam.lab.cli", "train", "digits", "--method", method, "--scale", "smoke"),
        *("-o", str(runs), "--accelerator", "cpu", *changes),
    ]


def config_of(method: str) -> RunConfig:
    return override(recipes.build("digits", method=method, scale="smoke"), [*SETTINGS, "system.accelerator=cpu"])


def last_weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    newest, complaints = checkpoints.newest_valid(folder.checkpoints)
    assert newest is not None
    assert not complaints
    assert newest.epoch == 30
    return newest.weights()


def assert_same_run(one: RunFolder, other: RunFolder) -> None:
    ours, theirs = last_weights(one), last_weights(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    clocks = ("images_per_second", "seconds", "elapsed")
    for rows, others in ((one.metrics(), other.metrics()), (one.steps(), other.steps())):
        timeless = [[{k: v for k, v in row.items() if k not in clocks} for row in part] for part in (rows, others)]
        assert timeless[0] == timeless[1]
    assert len((one.path / "metrics.csv").read_text().splitlines()) == 1 + 30


@pytest.mark.parametrize("method", ["lesam", "friendlysam", "esam"])
def test_killed_again_and_again(method: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    whole = RunFolder.of(config_of(method), tmp_path / "whole")
    train(config_of(method), runs=tmp_path / "whole", report=Silent())
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
    assert len(broken.environments()) == kills + 1


def _newest_step(folder: RunFolder) -> int:
    return max((item.step for item in checkpoints.listed(folder.checkpoints)), default=0)


def _wait_until(condition, process: subprocess.Popen[bytes]) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 120
    while not condition() and process.poll() is None:
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.005)


def test_sigint_stops_with_a_checkpoint_and_the_same_command_goes_on(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    train(config_of("lesam"), runs=tmp_path / "whole", report=Silent())
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
    assert f"going on at step {stopped_at}" in again.stdout
    assert_same_run(RunFolder.of(config_of("lesam"), tmp_path / "whole"), folder)
    third = subprocess.run(command("lesam", tmp_path / "broken"), env=ENVIRONMENT, capture_output=True, text=True)
    assert "is finished; nothing to do" in third.stdout
    assert len(folder.environments()) == 2


class StopAfter(Silent):
    """Breaks a run off at the end of an epoch, as an exception would."""

    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def epoch(self, row: object, *, epochs: int) -> None:
        self.left -= 1
        if not self.left:
            raise ConnectionError("broken off")


class Listener(Silent):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def message(self, text: str) -> None:
        self.heard.append(text)


@pytest.mark.parametrize("name", ["weights.safetensors", "state.pt", "manifest.json"])
def test_a_damaged_checkpoint_is_named_and_an_older_one_used(name: str, tmp_path: Path) -> None:
    config = override(recipes.build("digits", method="lesam", scale="smoke"), ["schedule.epochs=6"])
    config = override(config, ["record.checkpoint_every=1", "record.keep=2"])
    train(config, runs=tmp_path / "whole", report=Silent())
    with pytest.raises(ConnectionError):
        train(config, runs=tmp_path / "broken", report=StopAfter(4))
    folder = RunFolder.of(config, tmp_path / "broken")
    older, newest = checkpoints.listed(folder.checkpoints)
    data = bytearray((newest.path / name).read_bytes())
    data[len(data) // 2] ^= 0xFF
    (newest.path / name).write_bytes(data)

    listener = Listener()
    train(config, runs=tmp_path / "broken", report=listener)
    assert any(newest.path.name in text and "damaged" in text for text in listener.heard)
    ours, theirs = (
        load_file(RunFolder.of(config, tmp_path / where).checkpoints / "step-00000018" / "weights.safetensors")
        for where in ("whole", "broken")
    )
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert [row["epoch"] for row in folder.metrics()] == list(range(6))
    assert older.epoch == 3


def test_a_torn_line_of_metrics_does_not_survive(tmp_path: Path) -> None:
    config = override(recipes.build("digits", method="sgd", scale="smoke"), ["schedule.epochs=4"])
    config = override(config, ["record.checkpoint_every=1"])
    with pytest.raises(ConnectionError):
        train(config, runs=tmp_path, report=StopAfter(2))
    folder = RunFolder.of(config, tmp_path)
    for name in ("metrics.jsonl", "steps.jsonl"):
        with (folder.path / name).open("a") as file:
            file.write('{"epoch": 2, "st')
    train(config, runs=tmp_path, report=Silent())
    assert [row["epoch"] for row in folder.metrics()] == [0, 1, 2, 3]
    assert [row["step"] for row in folder.steps()] == sorted({row["step"] for row in folder.steps()})
    for line in (folder.path / "metrics.jsonl").read_text().splitlines():
        json.loads(line)


def test_a_half_written_checkpoint_is_not_one(tmp_path: Path) -> None:
    (tmp_path / ".step-00000004.123.tmp").mkdir()
    (tmp_path / "step-00000002").mkdir()
    found, complaints = checkpoints.newest_valid(tmp_path)
    assert found is None
    assert "step-00000002" in complaints[0]


def test_two_processes_do_not_train_one_run(tmp_path: Path) -> None:
    config = recipes.build("digits", method="sgd", scale="smoke")
    with RunFolder.of(config, tmp_path).lock(), pytest.raises(RuntimeError, match="another process is training"):
        train(config, runs=tmp_path, report=Silent())


def test_checkpoints_of_chosen_epochs_stay(tmp_path: Path) -> None:
    changes = ["schedule.epochs=6", "record.keep=1", "record.keep_epochs=2,3", "record.checkpoint_every=6"]
    config = override(recipes.build("digits", method="sgd", scale="smoke"), changes)
    train(config, runs=tmp_path, report=Silent())
    kept = checkpoints.listed(RunFolder.of(config, tmp_path).checkpoints)
    assert [item.epoch for item in kept] == [2, 3, 6]
    assert torch.load(kept[0].path / "state.pt", weights_only=True)["optimizer"]["param_groups"]
