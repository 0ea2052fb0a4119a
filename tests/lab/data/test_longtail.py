"""Long tails of a data set: how many images of each class, and which."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lesam.lab.data import Shaping, Splits, TensorSet
from lesam.lab.data.sampling import long_tailed_counts
from lesam.lab.tasks.shots import GROUPS, group_of


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
