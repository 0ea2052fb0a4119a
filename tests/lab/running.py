"""Short runs, runs that are broken off, and what must be equal after a restart."""

from __future__ import annotations

import signal
from pathlib import Path

import torch
from torch import Tensor

from lesam.lab import recipes
from lesam.lab.config import RunConfig
from lesam.lab.config.text import override
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs.folder import Row, RunFolder
from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Reporter, Silent

CLOCKS = ("images_per_second", "seconds", "elapsed")
"""Columns that differ between two runs that are equal."""


def smoke(recipe: str, *changes: str, method: str = "sgd") -> RunConfig:
    return override(recipes.build(recipe, method=method, scale="smoke"), changes)


def trained(config: RunConfig, runs: Path, progress: Reporter | None = None) -> RunFolder:
    train(config, runs=runs, progress=progress or Silent())
    return RunFolder.of(config, runs)


class Listener(Silent):
    """Remembers the messages of a run."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


class BreakOff(Silent):
    """Breaks a run off after a number of epochs or steps, as an exception would, or asks it to stop by a signal."""

    def __init__(self, *, epochs: int = 0, steps: int = 0, by_signal: bool = False) -> None:
        self._epochs, self._steps, self._by_signal = epochs, steps, by_signal

    def epoch(self, row: object, *, epochs: int) -> None:
        self._epochs -= 1
        if self._epochs == 0:
            self._stop()

    def step(self) -> None:
        self._steps -= 1
        if self._steps == 0:
            self._stop()

    def _stop(self) -> None:
        if not self._by_signal:
            raise ConnectionError("broken off")
        signal.raise_signal(signal.SIGTERM)


def last_checkpoint(folder: RunFolder) -> checkpoints.Checkpoint:
    newest, complaints = checkpoints.newest_valid(folder.checkpoints)
    assert newest is not None
    assert not complaints
    return newest


def timeless(rows: list[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in CLOCKS} for row in rows]


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def assert_same_run(one: RunFolder, other: RunFolder) -> None:
    """Both ended at the same step in the same weights, and every row they wrote is the same but for its clocks."""
    ours, theirs = last_checkpoint(one), last_checkpoint(other)
    assert (ours.epoch, ours.step, ours.batch) == (theirs.epoch, theirs.step, theirs.batch)
    assert_equal(ours.weights(), theirs.weights())
    assert timeless(one.metrics()) == timeless(other.metrics())
    assert timeless(one.steps()) == timeless(other.steps())
