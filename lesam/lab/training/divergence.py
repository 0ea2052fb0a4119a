"""Runs that are lost: losses that are no numbers any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lesam.lab.runs.repetitions import has_diverged
from lesam.lab.tasks.metrics import Seen


class RunDivergedError(RuntimeError):
    """A run came to its end without a finite loss."""


def raise_if_diverged(summaries: Sequence[Mapping[str, Any]], then: str) -> None:
    """Raise an error that names the runs without a finite loss at their end, and says what follows from it.

    >>> done = [{"folder": "a", "last": {}}, {"folder": "b", "last": {}, "diverged_at": 7}]
    >>> raise_if_diverged(done, "tables mark them")
    Traceback (most recent call last):
    lesam.lab.training.divergence.RunDivergedError: 1 of 2 runs diverged: b at step 7; tables mark them
    """
    lost = [diverged_text(summary) for summary in summaries if has_diverged(summary)]
    if lost:
        raise RunDivergedError(f"{len(lost)} of {len(summaries)} runs diverged: {', '.join(lost)}; {then}")


def diverged_text(summary: Mapping[str, Any]) -> str:
    """A diverged run by its folder, and the step where it is known: folders of earlier versions do not say it."""
    since = summary.get("diverged_at")
    return f"{summary['folder']}" if since is None else f"{summary['folder']} at step {since}"


def lost_since(table: Tensor, *, first_step: int, before: int | None) -> int | None:
    """The step from which on no loss is finite, None while the last one is.

    Single steps without a finite loss, as a loss scaler skips them, are forgotten at the next finite one.

    Args:
        table: What each step of an epoch saw, one row a step.
        first_step: Number of the epoch's first step.
        before: The answer at the end of the epoch before.

    Example:
        >>> nan = float("nan")
        >>> table = torch.tensor([[1.0, 1.5], [nan, nan], [nan, nan]])
        >>> lost_since(table, first_step=300, before=None)
        301
    """
    losses = table[:, [Seen._fields.index("loss"), Seen._fields.index("perturbed_loss")]]
    finite = torch.isfinite(losses).any(1).nonzero()
    if not len(finite):
        return first_step if before is None else before
    last = int(finite.max())
    return None if last == len(table) - 1 else first_step + last + 1
