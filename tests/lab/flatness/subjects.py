"""Runs to measure, and the same numbers by hand."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from lesam.lab import models
from lesam.lab.data import load
from lesam.lab.flatness.measures import FlatnessSettings
from lesam.lab.runs.folder import RunFolder

CHANGES = (
    "schedule.epochs=4",
    "record.keep_epochs=2",
    "record.keep=1",
    "model.options.width=3",
    "system.precision=64-true",
)
SETTINGS = FlatnessSettings(eigenvalues=3, trace_samples=4, lpf_samples=3, batch_size=100)


def one(runs: Path, method: str = "lesam", seed: int = 0) -> RunFolder:
    (path,) = runs.glob(f"*-{method}-seed{seed}-*")
    return RunFolder(path)


def by_hand(run: RunFolder, step: int = 12) -> tuple[torch.nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    """The network and its training images (with the wrong labels it was trained on), without the lab's machinery."""
    model = models.build("digits_cnn", 10, width=3).double()
    model.load_state_dict(load_file(run.checkpoints / f"step-{step:08d}" / "weights.safetensors"))
    data = load("digits", **run.config().data.options).train
    return model, [((data.images.double() / 255 - 0.3053) / 0.3759, data.labels)]


class Began(list[str]):
    """Remembers which measurements began."""

    def __call__(self, name: str):  # type: ignore[no-untyped-def]
        self.append(name)
        return lambda done, total: None
