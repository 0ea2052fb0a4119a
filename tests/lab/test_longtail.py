"""Long-tailed data: the published class counts, which images are taken, accuracies by group, and the recipes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lesam.lab import recipes
from lesam.lab.config.text import override
from lesam.lab.data import PADDING_LABEL, Shaping, Splits, TensorSet
from lesam.lab.data.sampling import long_tailed_counts
from lesam.lab.recipes.published import published
from lesam.lab.recipes.published_longtail import ROWS
from lesam.lab.runs.folder import RunFolder
from lesam.lab.tasks.evaluate import evaluate
from lesam.lab.tasks.shots import GROUPS, group_of
from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Silent


def cifar_like(classes: int, train: int = 50_000, test: int = 1_000) -> Splits:
    """Labels as balanced as CIFAR's, in random order; the three bytes of an image spell its position."""

    def made(count: int) -> TensorSet:
        labels = torch.arange(count)[torch.randperm(count, generator=torch.Generator().manual_seed(1))] % classes
        position = torch.arange(count)
        digits = torch.stack([position // 65536, position // 256 % 256, position % 256], 1)
        return TensorSet(digits.to(torch.uint8).view(-1, 3, 1, 1), labels)

    return Splits(made(train), made(test), classes, "cifar-like")


def positions(split: Any) -> Tensor:
    place: Tensor = (split.images.long().view(-1, 3) * torch.tensor([65536, 256, 1])).sum(1)
    return place


def counts_of(split: Any, classes: int) -> list[int]:
    counts: list[int] = torch.bincount(split.labels, minlength=classes).tolist()
    return counts


# ------------------------------------------------------------------ counts


@pytest.mark.parametrize(
    ("classes", "imbalance", "total", "smallest"),
    [(100, 100, 10_847, 5), (100, 50, 12_608, 10), (100, 10, 19_573, 50), (10, 100, 12_406, 50), (10, 50, 13_996, 100)],
)
def test_published_totals(classes: int, imbalance: int, total: int, smallest: int) -> None:
    splits = cifar_like(classes)
    cut = Shaping(imbalance=imbalance).apply(splits)
    counts = counts_of(cut.train, classes)
    assert sum(counts) == len(cut.train) == total
    assert (counts[0], counts[-1]) == (50_000 // classes, smallest)
    assert counts == sorted(counts, reverse=True)
    assert len(set(positions(cut.train).tolist())) == total
    assert torch.equal(splits.train.labels[positions(cut.train)], cut.train.labels)
    assert torch.equal(cut.test.labels, splits.test.labels)


@pytest.mark.parametrize(("imbalance", "groups"), [(100, (35, 34, 31)), (50, (41, 40, 19))])
def test_published_groups_of_cifar_100(imbalance: int, groups: tuple[int, int, int]) -> None:
    found = [group_of(count) for count in long_tailed_counts(500, 100, imbalance)]
    assert tuple(found.count(group) for group in GROUPS) == groups


def test_a_whole_number_is_not_lost_to_rounding() -> None:
    assert int(49 * (1 / 49)) == 0  # what plain arithmetic would make of the last class
    assert long_tailed_counts(49, 2, 49) == [49, 1]


# ------------------------------------------------------------------ which images


def test_the_images_are_those_of_ldams_rule() -> None:
    """NumPy's legacy generator, seeded once; each class in label order is shuffled and its first images taken."""
    splits = cifar_like(10)
    cut = Shaping(imbalance=100, seed=3).apply(splits)
    source, expected = np.random.RandomState(3), []
    for label in range(10):
        members = np.where(splits.train.labels.numpy() == label)[0]
        source.shuffle(members)
        expected += members[: int(5000 * 0.01 ** (label / 9))].tolist()
    assert sorted(expected) == positions(cut.train).tolist()


def test_a_longer_tail_is_a_part_of_a_shorter_one_and_seeds_differ() -> None:
    splits = cifar_like(100)
    at_100, at_50, other = (
        set(positions(Shaping(imbalance=factor, seed=seed).apply(splits).train).tolist())
        for factor, seed in ((100, 0), (50, 0), (100, 1))
    )
    assert at_100 < at_50
    assert other != at_100


def test_with_replacement_repeats_images_but_keeps_the_counts() -> None:
    splits = cifar_like(10)
    cut = Shaping(imbalance=10, with_replacement=True).apply(splits)
    assert counts_of(cut.train, 10) == long_tailed_counts(5000, 10, 10)
    assert torch.equal(splits.train.labels[positions(cut.train)], cut.train.labels)
    head = positions(cut.train)[cut.train.labels == 0]
    # 5,000 draws out of 5,000: a share of 1 - 1/e is seen, with a standard deviation of 0.0044.
    assert len(head.unique()) / 5000 == pytest.approx(1 - np.exp(-1), abs=0.03)


def test_validation_comes_first_and_the_rule_uses_the_largest_class_that_is_left() -> None:
    splits = cifar_like(100)
    shapes: list[dict[str, Any]] = [{}, {"imbalance": 10}, {"imbalance": 10, "train_size": 12_000}]
    plain, cut, small = (Shaping(validation=0.04, **shape).apply(splits) for shape in shapes)
    for made in (plain, cut, small):
        assert torch.equal(positions(made.validation), positions(plain.validation))
        assert counts_of(made.validation, 100) == [20] * 100
        assert not set(positions(made.train).tolist()) & set(positions(made.validation).tolist())
    assert counts_of(cut.train, 100) == long_tailed_counts(480, 100, 10)
    assert counts_of(small.train, 100) == long_tailed_counts(120, 100, 10)


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [
        ({"imbalance": 0.5}, "must be >= 1, got 0.5"),
        ({"imbalance": 100, "train_size": 1000}, "largest class has 10 images and needs 100"),
        ({"with_replacement": True}, "give imbalance as well"),
    ],
)
def test_refusals(shape: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Shaping(**shape).apply(cifar_like(100, train=5000))


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
    train(config, runs=runs, report=Silent())
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


# ------------------------------------------------------------------ recipes

LONG_TAILED = [name for name in recipes.NAMES if "-lt" in name]

# GLMC's released commands: r, k, gamma.
COMMANDS = {
    "cifar100-lt100-glmc": (0.0, 1.2, 4.0),
    "cifar100-lt50-glmc": (0.2, 1.2, 6.0),
    "cifar100-lt10-glmc": (0.2, 1.2, 4.0),
    "cifar10-lt100-glmc": (0.0, 1.2, 1.0),
    "cifar10-lt50-glmc": (0.0, 1.2, 1.0),
    "cifar10-lt10-glmc": (0.2, 1.0, 2.0),
}


def test_there_is_a_recipe_for_every_cell() -> None:
    expected = itertools.product(("cifar10", "cifar100"), (100, 50, 10), ("ce", "glmc"))
    assert set(LONG_TAILED) == {f"{data}-lt{factor}-{kind}" for data, factor, kind in expected}


@pytest.mark.parametrize("recipe", LONG_TAILED)
def test_every_method_builds_at_every_scale(recipe: str) -> None:
    factor = int(recipe.split("-lt")[1].split("-")[0])
    for method, scale in itertools.product(recipes.METHODS, recipes.SCALES):
        config = recipes.build(recipe, method=method, scale=scale)
        assert config.data.options["imbalance"] == factor
        assert config.task.kind == ("glmc" if recipe.endswith("glmc") else "classification")


@pytest.mark.parametrize("recipe", COMMANDS)
def test_glmc_has_its_released_values(recipe: str) -> None:
    config: Any = recipes.build(recipe, method="sam", scale="paper")
    assert (config.task.resampling_power, config.task.weight_power, config.task.gamma) == COMMANDS[recipe]
    assert (config.schedule.epochs, config.data.batch_size, config.data.augment) == (200, 64, "basic")
    assert (config.optimizer.lr, config.optimizer.weight_decay, config.optimizer.momentum) == (0.01, 5e-3, 0.9)
    assert (config.optimizer.rho, config.optimizer.batch_norm, config.task.ascent) == (0.05, "both", "full")
    assert not config.data.options["with_replacement"]


def test_only_what_the_paper_trained_is_shown_beside_a_run() -> None:
    figures = {
        (factor, method): published(recipes.build(f"cifar100-lt{factor}-glmc", method=method, scale="paper"))
        for factor in (100, 50)
        for method in ("sgd", "sam", "lesam")
    }
    assert figures == {
        (100, "sgd"): None,
        (100, "sam"): (57.25, 0.34),
        (100, "lesam"): (58.65, 0.46),
        (50, "sgd"): None,
        (50, "sam"): (63.01, 0.41),
        (50, "lesam"): (63.67, 0.47),
    }
    assert [row.label for row in ROWS if row.kind is not None] == ["CE", "GLMC", "GLMC + SAM", "GLMC + LE-SAM"]
