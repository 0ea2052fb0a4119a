"""Attacks on trained runs: the run's own network on its own pixels, and the outcome kept in its folder.

``RUN/attacks/FINGERPRINT.json`` holds the settings, the outcome and the environment of one attack. The fingerprint is a
hash of the settings and of the attacked weights, so the same question finds its answer again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from lesam.lab.attacks.pgd import Attack, Robustness, robust_accuracy
from lesam.lab.config.run import RunConfig
from lesam.lab.config.suggest import unknown
from lesam.lab.console import Watch
from lesam.lab.data import Batches, FolderSet, TensorSet, normalisation
from lesam.lab.data.loading import choose_split, load_data, outside_normalisation, plain_batches
from lesam.lab.data.subset import drawn
from lesam.lab.device import channels_last, measuring_device
from lesam.lab.models import NormalisedInput
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs import environment
from lesam.lab.runs.answers import Question, Recorded, answer, find
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.restore import load_model

FinalNorm = Literal["correct", "sam_at_bug"]

FINAL_NORMS: tuple[FinalNorm, ...] = ("correct", "sam_at_bug")
"""Which constants normalise the attacked images for the final answer.

``sam_at_bug`` is a bug in the released evaluation on CIFAR-100 (Zhang et al. 2024): it attacks through CIFAR-100's
constants and answers through CIFAR-10's.
"""

BUG_NORMALISATION = "robust_cifar10"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackedRun:
    """The outcome of one attack on one run."""

    run: Path
    file: Path
    """Where it is kept."""
    epoch: int
    """Epochs the attacked network was trained for."""
    step: int
    split: str
    final_norm: FinalNorm
    robustness: Robustness
    reused: bool
    """Whether it was read from the file instead of computed."""


def attack_run(
    run: RunFolder,
    attack: Attack,
    *,
    epoch: int | None = None,
    split: str = "test",
    samples: int | None = None,
    batch_size: int = 1024,
    final_norm: FinalNorm = "correct",
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: Watch | None = None,
) -> AttackedRun:
    """Attack the network of a run, or find the outcome of the same attack in its folder.

    Clean accuracy is always that of the network as it was trained, whatever ``final_norm``.

    Args:
        run: The run's folder.
        attack: The settings.
        epoch: Attack the checkpoint after this number of epochs; None takes the end of a finished run.
        split: ``test``, ``validation`` or ``train`` (without augmentation, with the labels it was trained on).
        samples: Attack only this number of images of the split, drawn at random, for all runs the same ones.
        batch_size: Images attacked at a time; the random starts depend on it.
        final_norm: One of :data:`FINAL_NORMS`.
        seed: Of the random starts.
        device: Where to compute; None takes an accelerator where there is one.
        progress: Called when an attack begins; one that is read from the folder does not begin.

    Raises:
        ValueError: The run is not finished and no epoch is given, or has no such checkpoint or split.
    """
    if final_norm not in FINAL_NORMS:
        raise unknown("final normalisation", final_norm, FINAL_NORMS)
    check_sizes(batch_size, samples)
    settings = {
        "attack": asdict(attack),
        "final_norm": final_norm,
        "split": split,
        "samples": samples,
        "batch_size": batch_size,
        "seed": seed,
        "checkpoint": weights_key(run, epoch),
    }
    outcome, file, reused = kept(
        Question(run=run, room="attacks", key=settings),
        lambda: _measure(run, attack, settings, measuring_device(device, float64=False), progress),
    )
    return AttackedRun(
        run=run.path,
        file=file,
        epoch=outcome.settings["checkpoint"]["epoch"],
        step=outcome.settings["checkpoint"]["step"],
        split=split,
        final_norm=final_norm,
        robustness=Robustness(attack=attack, seed=seed, **outcome.result),
        reused=reused,
    )


def pixel_model(model: nn.Module, config: RunConfig) -> NormalisedInput:
    """The network of a run as a function of pixels in [0, 1], whoever normalised them in training."""
    outside = outside_normalisation(config)
    if not isinstance(model, NormalisedInput):
        return NormalisedInput(model, *normalisation(outside))
    if outside != "unit":
        raise ValueError(
            f"this run normalises twice, by data.normalisation={outside} and by model.options.normalisation="
            f"{config.model.options.get('normalisation')}: set one of them only"
        )
    return model


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The network of a run as a function of pixels, and the images it is asked about."""

    model: NormalisedInput
    batches: Batches
    images: int
    channels: int | None
    """None where files are read one by one."""

    @classmethod
    def of(cls, run: RunFolder, settings: Mapping[str, Any], device: torch.device) -> Subject:
        """Load what ``settings`` name: checkpoint, split, samples and batch size."""
        config = run.config()
        splits = load_data(config)
        images = _some(choose_split(splits, settings["split"]), settings["samples"])
        epoch = settings["checkpoint"]["epoch"]
        module, _ = load_model(run, epoch, device=device, classes=splits.classes, scored=True)
        last = channels_last(config.system, module, device)
        if last:  # a sixth faster on a CPU
            module.to(memory_format=torch.channels_last)
        batches = plain_batches(
            config, images, batch_size=settings["batch_size"], device=device, pixels=True, channels_last=last
        )
        return cls(
            model=pixel_model(module, config).to(device),
            batches=batches,
            images=len(images),
            channels=images.images.shape[1] if isinstance(images, TensorSet) else None,
        )


def weights_key(run: RunFolder, epoch: int | None) -> dict[str, Any]:
    """The checkpoint after ``epoch``, or of the end of a finished run, as the part of a question's key.

    Raises:
        ValueError: The run is not finished and no epoch is given, or has no such checkpoint.
    """
    if epoch is None and run.summary() is None:
        raise ValueError(f"{run.path} is not finished; name the epoch whose checkpoint to ask about")
    checkpoint = checkpoints.find(run.checkpoints, epoch)
    return {"epoch": checkpoint.epoch, "step": checkpoint.step, "weights_sha256": checkpoint.weights_sha256()}


def check_sizes(batch_size: int, samples: int | None) -> None:
    """Refuse numbers of images without a meaning."""
    if batch_size < 1 or (samples is not None and samples < 1):
        raise ValueError(f"batch_size and samples must be at least 1, got {batch_size} and {samples}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What the file of an answer holds."""

    settings: Mapping[str, Any]
    result: Mapping[str, Any]
    seconds: float
    environment: Mapping[str, Any]

    def to_record(self) -> dict[str, Any]:
        """As it is written."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Outcome:
        """As it was written."""
        return cls(**{name: record[name] for name in ("settings", "result", "seconds", "environment")})


def kept(question: Question, ask: Callable[[], Outcome]) -> tuple[Outcome, Path, bool]:
    """The outcome, its file, and whether the file had it already."""
    form = Recorded(to_record=Outcome.to_record, from_record=Outcome.from_record)
    found = find(question, form)
    return found or answer(question, form, ask), question.path, found is not None


def _measure(
    run: RunFolder, attack: Attack, settings: dict[str, Any], device: torch.device, progress: Watch | None
) -> Outcome:
    """Attack."""
    subject = Subject.of(run, settings, device)
    predictor = None
    if settings["final_norm"] == "sam_at_bug":
        if subject.channels != 3:
            raise ValueError(f"final_norm=sam_at_bug is about colour images, {run.config().data.name} has grey ones")
        predictor = NormalisedInput(subject.model.model, *normalisation(BUG_NORMALISATION)).to(device)
    advance = (lambda done, total: None) if progress is None else progress("images attacked")
    began = time.monotonic()
    outcome = robust_accuracy(
        subject.model,
        subject.batches.epoch(0),
        attack,
        seed=settings["seed"],
        predictor=predictor,
        progress=lambda done: advance(done, subject.images),
    )
    return Outcome(
        settings=settings,
        result={"clean": outcome.clean, "attacked": outcome.attacked, "samples": outcome.samples},
        seconds=time.monotonic() - began,
        environment=environment.describe(),
    )


def _some(split: TensorSet | FolderSet, samples: int | None) -> TensorSet | FolderSet:
    """The whole split, or a number of its images, drawn at random in a way that more contain fewer."""
    if samples is None:
        return split
    if samples > len(split):
        raise ValueError(f"the split has {len(split)} images, {samples} were asked for")
    return split.subset(drawn(split, samples, "attacked images").sort().values)
