"""The network on which the paper looks at training itself, and the changes that several figures share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lesam.lab.paper.experiment import Cell
from lesam.lab.runs.repetitions import Group, group

STAGE = {"CIFAR-100, ResNet-18": "cifar100-resnet18"}

TWENTIETHS: dict[str, Any] = {"record.keep_epochs": tuple(part / 20 for part in range(1, 21))}
"""Twenty checkpoints over training, for what is measured over training."""

UNSTABILISED: dict[str, Any] = {
    "optimizer.rho_max": None,
    "schedule.budget_anneal_start": None,
    "schedule.budget_warmup": 0,
}
"""LE-SAM without cap and annealing, and without the warm-up that the paper does not have."""

EVERY_EPOCH: dict[str, Any] = {"record.evaluate_every": 1}
"""For curves of test accuracy; part of no run's identity, so runs that are finished stay as they are."""


def groups_of(cells: Sequence[Cell]) -> list[Group]:
    """The runs of all cells as groups for figures."""
    return group(run for cell in cells for run in cell.runs)
