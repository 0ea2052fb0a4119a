"""Accuracy on classes with many, a medium number of and few training images."""

from __future__ import annotations

from collections.abc import Sequence

from lesam.lab.tasks.evaluate import Score

GROUPS = ("many", "medium", "few")
MANY, FEW = 100, 20
"""Classes with more than ``MANY`` training images are many-shot, those with at most ``FEW`` few-shot (Liu et al.,
Large-Scale Long-Tailed Recognition in an Open World, CVPR 2019)."""


def group_of(count: int) -> str:
    """The group of a class by the number of its training images.

    >>> [group_of(count) for count in (101, 100, 21, 20)]
    ['many', 'medium', 'medium', 'few']
    """
    return "many" if count > MANY else "few" if count <= FEW else "medium"


def group_accuracies(name: str, score: Score, counts: Sequence[int]) -> dict[str, float | None]:
    """Entries of an epoch's row: accuracy over the images of each group's classes, None for an empty group.

    Args:
        name: The split that was scored.
        score: With its counts by class.
        counts: Training images of each class.

    Example:
        >>> score = Score(loss=0.1, accuracy=0.7, samples=20, classes=((9, 10), (5, 10)))
        >>> group_accuracies("test", score, [500, 5])
        {'test_many_accuracy': 0.9, 'test_medium_accuracy': None, 'test_few_accuracy': 0.5}
    """
    totals = {group: [0, 0] for group in GROUPS}
    for (right, images), count in zip(score.classes, counts, strict=True):
        total = totals[group_of(count)]
        total[0] += right
        total[1] += images
    return {f"{name}_{group}_accuracy": right / images if images else None for group, (right, images) in totals.items()}
