"""Accuracy on classes with many, a medium number of and few images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lesam.lab import recipes
from lesam.lab.config.text import override
from lesam.lab.data import PADDING_LABEL
from lesam.lab.runs.folder import RunFolder
from lesam.lab.tasks.evaluate import evaluate
from lesam.lab.tasks.shots import GROUPS
from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Silent

# ------------------------------------------------------------------ groups


class Answers(nn.Module):
    """Answers with the class that its input spells."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.one_hot(x.long(), 3).double()


def test_counts_by_class_leave_filled_up_images_out() -> None:
    answers, labels = torch.tensor([0, 0, 1, 2, 0, 1, 0]), torch.tensor([0, 0, 1, 1, 2, 1, PADDING_LABEL])
    batches = [(answers[:4], labels[:4]), (answers[4:], labels[4:])]
    plain, counted = (evaluate(Answers(), batches, classes=classes) for classes in (0, 3))
    assert counted.classes == ((2, 2), (2, 3), (0, 1))
    assert plain.classes == ()
    assert (plain.loss, plain.accuracy, plain.samples) == (counted.loss, counted.accuracy, counted.samples)
    assert counted.accuracy == 4 / 6


def rows_of(recipe: str, runs: Path, *changes: str) -> list[dict[str, Any]]:
    config = override(recipes.build(recipe, method="sgd", scale="smoke"), changes)
    train(config, runs=runs, progress=Silent())
    return RunFolder.of(config, runs).metrics()


def test_every_row_of_a_long_tailed_run_has_the_groups(tmp_path: Path) -> None:
    """Classes of 101, 21, 4 and 1 images, tested on 8 images each: the groups' mean is the accuracy."""
    for row in rows_of("cifar100-lt100-ce", tmp_path):
        many, medium, few = (row[f"test_{group}_accuracy"] for group in GROUPS)
        assert row["test_accuracy"] == pytest.approx((many + medium + 2 * few) / 4)


def test_an_empty_group_is_none_and_balanced_runs_have_no_groups(tmp_path: Path) -> None:
    changes = ("data.options.train_size=80", "data.options.imbalance=2")  # classes of 20 to 10 images
    row = rows_of("cifar100-lt100-ce", tmp_path, *changes)[-1]
    assert row["test_many_accuracy"] is None
    assert row["test_medium_accuracy"] is None
    assert row["test_few_accuracy"] == row["test_accuracy"]
    balanced = rows_of("cifar100-lt100-ce", tmp_path, "data.options.imbalance=none")[-1]
    assert not [name for name in balanced if any(group in name for group in GROUPS)]
