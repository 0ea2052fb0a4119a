"""The shape of a kind of training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lesam.lab.config.run import RunConfig
from lesam.lab.data import Splits
from lesam.lab.data.loading import Pipeline
from lesam.lab.tasks.evaluate import Score, evaluate
from lesam.lab.tasks.metrics import plain
from lesam.lab.tasks.objective import Batch, Objective
from lesam.lab.tasks.schedule import Timetable
from lesam.lab.tasks.shots import group_accuracies
from lesam.lab.tasks.step import Outcome, make_stepper

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What a run is built from, before its task is."""

    config: RunConfig
    fabric: Fabric
    splits: Splits
    module: nn.Module
    """The bare network, whose state is saved."""
    model: nn.Module
    """The network as Fabric wrapped it, for evaluation."""
    inner: nn.Module
    """The network inside Fabric's own wrapper, for training: that one rounds outputs to float32."""
    optimizer: torch.optim.Optimizer
    scaler: Any | None
    data: Pipeline
    times: Timetable

    @property
    def class_counts(self) -> list[int]:
        """Training images of each class."""
        counts: list[int] = torch.bincount(self.splits.train.labels, minlength=self.splits.classes).tolist()
        return counts

    @property
    def long_tailed(self) -> bool:
        """Whether the run asked for a long-tailed training set."""
        return self.config.data.options.get("imbalance") is not None


class Task:
    """Trains on batches and scores a model. A kind of training overrides what differs in it.

    What ``take`` draws at random must come from a generator that is a function of (seed, step): a resumed run
    repeats it, and both passes of a step see the same.
    """

    def __init__(self, parts: Parts) -> None:
        """Bind the parts and choose how a step is taken."""
        self.parts = parts
        self.objective = self.make_objective()
        self.take_step = make_stepper(parts.config.optimizer, parts.optimizer, self.objective, parts.scaler)

    def make_objective(self) -> Objective:
        """The loss of a batch."""
        raise NotImplementedError

    @property
    def uniform_loss(self) -> float | None:
        """Loss of a network that gives every class the same probability; None where it is no fixed number."""
        return math.log(self.parts.splits.classes)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The training batches of an epoch, from number ``start`` on: tensors, the labels last."""
        return self.parts.data.train.epoch(epoch, start=start)

    def step(self, batch: Batch, step: int) -> Outcome:
        """Take optimizer step number ``step`` of the run."""
        self.objective.take(batch, step)
        return self.take_step()

    @property
    def evaluated(self) -> nn.Module:
        """The network that is scored: the trained one, unless a kind keeps an average."""
        return self.parts.model

    def scored(self) -> Iterator[tuple[str, Iterable[tuple[Tensor, Tensor]]]]:
        """Name and batches of what is scored."""
        return self.parts.data.held_out()

    def scores(self) -> dict[str, float | None]:
        """Entries of the epoch's row: ``test_accuracy`` and what else there is to score."""
        row: dict[str, float | None] = {}
        counts = self.parts.class_counts if self.parts.long_tailed else []
        for name, batches in self.scored():
            score = evaluate(self.evaluated, batches, self.parts.fabric, classes=len(counts))
            row |= entries(name, score, counts)
        return row | mean_over_targets(row, list(self.parts.splits.targets))

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs beyond the weights and the optimizer."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a saved state."""


def entries(name: str, score: Score, counts: Sequence[int] = ()) -> dict[str, float | None]:
    """A score as entries of a row; with training images of each class, also the accuracies of a long tail's groups."""
    row = {
        f"{name}_loss": plain(score.loss),
        f"{name}_accuracy": score.accuracy,
        f"{name}_nll": plain(score.loss),
        f"{name}_calibration_error": plain(score.calibration_error),
    }
    return row | (group_accuracies(name, score, counts) if counts else {})


def mean_over_targets(row: Mapping[str, float | None], targets: Sequence[str]) -> dict[str, float | None]:
    """``test_accuracy`` and its kin of a row as the means over targets, each counted alike whatever its size.

    >>> mean_over_targets({"test_photo_accuracy": 0.5, "test_sketch_accuracy": 0.25}, ["photo", "sketch"])
    {'test_accuracy': 0.375}
    """
    means: dict[str, float | None] = {}
    for quantity in ("loss", "accuracy", "nll", "calibration_error"):
        names = [f"test_{target}_{quantity}" for target in targets]
        if names and all(name in row for name in names):
            values = [value for name in names if (value := row[name]) is not None]
            means[f"test_{quantity}"] = sum(values) / len(values) if len(values) == len(names) else None
    return means


def right_answers(logits: Tensor, labels: Tensor) -> Tensor:
    """Number of right answers, unread."""
    return (logits.detach().argmax(1) == labels).sum()
