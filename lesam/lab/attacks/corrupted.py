"""Trained runs on corrupted images, and the outcome kept in their folders: ``RUN/corruptions/FINGERPRINT.json``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lesam.lab.attacks.corruptions import CORRUPTIONS, SEVERITIES
from lesam.lab.attacks.run import Outcome, Subject, check_sizes, kept, weights_key
from lesam.lab.config.suggest import unknown
from lesam.lab.console import Watch
from lesam.lab.data.seeds import generator
from lesam.lab.device import measuring_device
from lesam.lab.models.modes import evaluating
from lesam.lab.runs import environment
from lesam.lab.runs.answers import Question
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.statistics import Spread


@dataclass(frozen=True, kw_only=True, slots=True)
class CorruptedRun:
    """Shares of right answers of one run."""

    file: Path
    """Where it is kept."""
    epoch: int
    images: int
    clean: float
    corrupted: Mapping[str, Sequence[float]]
    """By corruption, one for each severity."""
    reused: bool
    """Whether it was read from the file instead of computed."""

    @property
    def means(self) -> dict[str, float]:
        """Over the severities of each corruption."""
        return {name: Spread.of(list(values)).mean for name, values in self.corrupted.items()}

    @property
    def mean(self) -> float:
        """Over all corruptions and severities."""
        return Spread.of(list(self.means.values())).mean


def corrupt_run(
    run: RunFolder,
    names: Sequence[str] = tuple(CORRUPTIONS),
    *,
    epoch: int | None = None,
    split: str = "test",
    samples: int | None = None,
    batch_size: int = 1024,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: Watch | None = None,
) -> CorruptedRun:
    """Accuracy of a run on corrupted images, or the same question's outcome from its folder.

    Args:
        run: The run's folder.
        names: Of :data:`lesam.lab.attacks.corruptions.CORRUPTIONS`, at all five severities.
        epoch: Ask the checkpoint after this number of epochs; None takes the end of a finished run.
        split: ``test``, ``validation`` or ``train`` (without augmentation, with the labels it was trained on).
        samples: Ask about this number of images only, drawn at random, for all runs the same ones.
        batch_size: Images at a time; the noise depends on it.
        seed: Of the noise.
        device: Where to compute; None takes an accelerator where there is one.
        progress: Called when the measurement begins; one that is read from the folder does not begin.
    """
    for name in names:
        if name not in CORRUPTIONS:
            raise unknown("corruption", name, CORRUPTIONS)
    check_sizes(batch_size, samples)
    settings: dict[str, Any] = {
        "corruptions": {name: CORRUPTIONS[name].amounts for name in names},
        "split": split,
        "samples": samples,
        "batch_size": batch_size,
        "seed": seed,
        "checkpoint": weights_key(run, epoch),
    }
    outcome, file, reused = kept(
        Question(run=run, room="corruptions", key=settings),
        lambda: _measure(run, settings, measuring_device(device, float64=False), progress),
    )
    return CorruptedRun(
        file=file,
        epoch=outcome.settings["checkpoint"]["epoch"],
        images=outcome.result["samples"],
        clean=outcome.result["clean"],
        corrupted=outcome.result["corrupted"],
        reused=reused,
    )


@torch.no_grad()
def _measure(run: RunFolder, settings: dict[str, Any], device: torch.device, progress: Watch | None) -> Outcome:
    """Ask about every image as it is, and spoiled in every way."""
    subject = Subject.of(run, settings, device)
    advance = (lambda done, total: None) if progress is None else progress("images corrupted")
    ways = [(name, severity) for name in settings["corruptions"] for severity in SEVERITIES]
    right, clean, done = torch.zeros(len(ways), device=device), torch.zeros((), device=device), 0
    began = time.monotonic()
    with evaluating(subject.model):
        for number, (images, labels) in enumerate(subject.batches.epoch(0)):
            if images.dim() != 4 or 1 in images.shape[2:]:
                shape = " x ".join(map(str, images.shape[1:]))
                raise ValueError(f"corruptions are of images, and {run.config().data.name} has inputs of {shape}")
            clean += (subject.model(images).argmax(1) == labels).sum()
            for place, (name, severity) in enumerate(ways):
                source = generator(name, severity, settings["seed"], number)
                spoiled = CORRUPTIONS[name](images, severity, source)
                right[place] += (subject.model(spoiled).argmax(1) == labels).sum()
            done += len(labels)
            advance(done, subject.images)
    shares = (right / subject.images).tolist()
    corrupted = {
        name: [share for (of, _), share in zip(ways, shares, strict=True) if of == name]
        for name in settings["corruptions"]
    }
    return Outcome(
        settings=settings,
        result={"clean": float(clean) / subject.images, "corrupted": corrupted, "samples": subject.images},
        seconds=time.monotonic() - began,
        environment=environment.describe(),
    )
