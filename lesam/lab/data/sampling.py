"""Choosing training images: how many of each class, which are held out, which labels are made wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lesam.lab.data.seeds import generator
from lesam.lab.data.splits import Splits, TensorSet


def balanced_counts(labels: Tensor, classes: int, total: int) -> list[int]:
    """Divide ``total`` images over the classes as evenly as what is there allows.

    Example:
        >>> balanced_counts(torch.tensor([0, 0, 0, 0, 1, 2, 2, 2]), classes=3, total=6)
        [3, 1, 2]
    """
    available = torch.bincount(labels, minlength=classes).tolist()
    if not 0 < total <= len(labels):
        raise ValueError(f"cannot choose {total} images out of {len(labels)}")
    counts = [0] * classes
    while total > 0:
        open_classes = [c for c in range(classes) if counts[c] < available[c]]
        share = max(1, total // len(open_classes))
        for c in open_classes[: total if share == 1 else None]:
            taken = min(share, available[c] - counts[c], total)
            counts[c] += taken
            total -= taken
    return counts


def pick_per_class(labels: Tensor, counts: Sequence[int], seed: int) -> Tensor:
    """Choose ``counts[c]`` random images of each class ``c``, without replacement.

    Fewer images of a class are a subset of more of them under the same seed.

    Returns:
        Positions in ascending order.

    Example:
        >>> labels = torch.tensor([0, 1, 0, 1, 0])
        >>> labels[pick_per_class(labels, [2, 1], seed=0)].sort().values
        tensor([0, 0, 1])
    """
    chosen = []
    for label, count in enumerate(counts):
        members = (labels == label).nonzero().flatten()
        if count > len(members):
            raise ValueError(f"class {label} has {len(members)} images, {count} were asked for")
        order = torch.randperm(len(members), generator=generator("class", seed, label))
        chosen.append(members[order[:count]])
    return torch.cat(chosen).sort().values


def long_tailed_counts(largest: int, classes: int, imbalance: float) -> list[int]:
    """Images of each class in a long tail, ``int(largest * imbalance ** (-c / (classes - 1)))`` in label order.

    The rule of CIFAR-LT (Cao et al., LDAM, NeurIPS 2019): the first class keeps ``largest`` images, the last one
    ``largest / imbalance``.

    Example:
        >>> counts = long_tailed_counts(500, classes=100, imbalance=100)
        >>> counts[0], counts[-1], sum(counts)
        (500, 5, 10847)
    """
    if imbalance < 1.0:
        raise ValueError(f"imbalance is the largest class over the smallest and must be >= 1, got {imbalance}")
    if classes < 2:
        raise ValueError(f"a long tail needs at least 2 classes, got {classes}")
    # A value that is whole in exact arithmetic must not be lost to rounding (49 * (1 / 49) is below 1).
    counts = [int(largest * (1 / imbalance) ** (c / (classes - 1)) + 1e-9) for c in range(classes)]
    if counts[-1] < 1:
        raise ValueError(
            f"imbalance={imbalance} leaves no image of the last class: the largest class has {largest} images and "
            f"needs {imbalance:.0f}; take more images (train_size) or a smaller imbalance"
        )
    return counts


def pick_long_tail(labels: Tensor, counts: Sequence[int], seed: int, *, with_replacement: bool = False) -> Tensor:
    """Choose ``counts[c]`` images of each class ``c`` as LDAM does: shuffle the class, take the first ones.

    The shuffles are NumPy's legacy ones, class after class: on CIFAR's official files seed 0 is the seed of the
    released subsets. With replacement an image may be taken more than once, so a class holds fewer different ones.

    Returns:
        Positions in ascending order.

    Example:
        >>> labels = torch.tensor([0, 1, 0, 1, 0])
        >>> labels[pick_long_tail(labels, [3, 1], seed=0)].sort().values
        tensor([0, 0, 0, 1])
    """
    source, chosen = np.random.RandomState(seed), []
    for label, count in enumerate(counts):
        members = (labels == label).nonzero().flatten().numpy()
        if count > len(members):
            raise ValueError(f"class {label} has {len(members)} images, {count} were asked for")
        if with_replacement:
            taken = source.choice(members, count, replace=True)
        else:
            source.shuffle(members)
            taken = members[:count]
        chosen.append(torch.from_numpy(taken))
    return torch.cat(chosen).sort().values


def corrupt_labels(labels: Tensor, classes: int, fraction: float, seed: int) -> Tensor:
    """Make exactly ``round(fraction * N)`` labels wrong, each another class drawn uniformly.

    Example:
        >>> labels = torch.zeros(10, dtype=torch.int64)
        >>> int((corrupt_labels(labels, 3, 0.3, seed=0) != labels).sum())
        3
    """
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"label_noise must lie in [0, 1], got {fraction}")
    if fraction > 0 and classes < 2:
        raise ValueError(f"label_noise needs at least 2 classes, got {classes}")
    source = generator("label noise", seed)
    wrong = torch.randperm(len(labels), generator=source)[: round(fraction * len(labels))]
    shift = torch.randint(1, max(classes, 2), (len(wrong),), generator=source)
    noisy = labels.clone()
    noisy[wrong] = (labels[wrong] + shift) % classes
    return noisy


def chosen_classes(text: str | int, classes: int) -> list[int]:
    """The classes that a text lists, as numbers and inclusive ranges, in ascending order.

    Example:
        >>> chosen_classes("60-62,7", classes=100)
        [7, 60, 61, 62]
    """
    found: list[int] = []
    for part in str(text).split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise ValueError(f"only_classes lists classes and ranges, as in 0-59 or 3,7,20-29; got {text!r}")
        found += range(int(first), int(last or first) + 1)
    if not found or len(set(found)) < len(found) or max(found) >= classes:
        raise ValueError(
            f"only_classes={text!r} must list different classes out of 0..{classes - 1}, ranges from the smaller number"
        )
    return sorted(found)


def of_classes(split: TensorSet, chosen: Sequence[int]) -> TensorSet:
    """The images of some classes; the labels become positions in the list.

    Example:
        >>> split = TensorSet(torch.zeros(4, 1, 1, 1, dtype=torch.uint8), torch.tensor([0, 5, 3, 5]))
        >>> of_classes(split, [3, 5]).labels
        tensor([1, 0, 1])
    """
    listed = torch.tensor(chosen)
    kept = split.subset(torch.isin(split.labels, listed).nonzero().flatten())
    return TensorSet(kept.images, torch.searchsorted(listed, kept.labels))


@dataclass(frozen=True, kw_only=True)
class Shaping:
    """What part of a data set to use. Every choice is a function of ``seed``.

    Images of other classes than those asked for are left out first. The validation images are drawn next (so
    they do not depend on ``train_size``), then the training images from the rest, both balanced over classes. Of
    these a long tail is cut, which keeps the largest class whole; then training labels are made wrong. Validation
    and test images stay balanced and their labels right.

    Attributes:
        train_size: Training images to keep, before a long tail is cut; ``None`` keeps all.
        test_size: Test images to keep; ``None`` keeps all.
        validation: Fraction of the official training images to hold out.
        label_noise: Fraction of the training labels to make wrong.
        imbalance: Largest class over smallest of a long-tailed training set; ``None`` cuts no tail.
        with_replacement: Draw the long tail with replacement, as GLMC's published numbers were made.
        only_classes: Classes to keep, in all splits, as numbers and inclusive ranges: ``"0-59"``, ``"3,7,20-29"``. They
            are numbered anew from 0, in ascending order. ``None`` keeps all.
        seed: Seed of all of the above.
    """

    train_size: int | None = None
    test_size: int | None = None
    validation: float = 0.0
    label_noise: float = 0.0
    imbalance: float | None = None
    with_replacement: bool = False
    only_classes: str | int | None = None
    seed: int = 0

    def apply(self, splits: Splits) -> Splits:
        """Return the splits with these choices made."""
        if self.only_classes is not None:
            splits = _with_classes(splits, self.only_classes)
        train, test = splits.train, splits.test
        if not isinstance(train, TensorSet) or not isinstance(test, TensorSet):
            if self != Shaping(seed=self.seed):
                raise ValueError(f"{splits.name} is not held in memory: {self} does not apply to it")
            return splits
        if not 0.0 <= self.validation < 1.0:
            raise ValueError(f"validation must lie in [0, 1), got {self.validation}")
        if self.with_replacement and self.imbalance is None:
            raise ValueError("with_replacement is a way to draw a long tail: give imbalance as well")
        validation = splits.validation
        held_out = round(self.validation * len(train))
        if held_out:
            chosen = _balanced(train, splits.classes, held_out, self.seed)
            rest = torch.ones(len(train), dtype=torch.bool)
            rest[chosen] = False
            validation, train = train.subset(chosen), train.subset(rest.nonzero().flatten())
        if self.train_size is not None:
            train = train.subset(_balanced(train, splits.classes, self.train_size, self.seed))
        if self.imbalance is not None:
            train = train.subset(self._long_tail(train.labels, splits.classes, self.imbalance))
        if self.test_size is not None:
            test = test.subset(_balanced(test, splits.classes, self.test_size, self.seed))
        if self.label_noise:
            labels = corrupt_labels(train.labels, splits.classes, self.label_noise, self.seed)
            train = TensorSet(train.images, labels)
        return replace(splits, train=train, test=test, validation=validation)

    def _long_tail(self, labels: Tensor, classes: int, imbalance: float) -> Tensor:
        largest = int(torch.bincount(labels, minlength=classes).max())
        counts = long_tailed_counts(largest, classes, imbalance)
        return pick_long_tail(labels, counts, self.seed, with_replacement=self.with_replacement)


def _with_classes(splits: Splits, text: str | int) -> Splits:
    chosen, train, test = chosen_classes(text, splits.classes), splits.train, splits.test
    if not isinstance(train, TensorSet) or not isinstance(test, TensorSet):
        raise ValueError(f"{splits.name} is not held in memory: only_classes={text!r} does not apply to it")
    return replace(splits, train=of_classes(train, chosen), test=of_classes(test, chosen), classes=len(chosen))


def _balanced(split: TensorSet, classes: int, total: int, seed: int) -> Tensor:
    return pick_per_class(split.labels, balanced_counts(split.labels, classes, total), seed)
