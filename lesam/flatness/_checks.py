"""Refusals: functions for which a curvature would be a number without a meaning."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from lesam.flatness._data import Batch, rows, twice

LossOf = Callable[[Batch], float]


def refuse_random(loss_of: LossOf, batch: Batch, model: nn.Module, dtype: torch.dtype) -> None:
    """The same batch must give the same loss twice."""
    first, second = loss_of(batch), loss_of(batch)
    if not _close(first, second, 64 * torch.finfo(dtype).eps):
        active = sorted({type(m).__name__ for m in model.modules() if m.training and "Drop" in type(m).__name__})
        raise ValueError(
            f"the loss is random: the same batch gave {first!r} and then {second!r}"
            + (f" (active: {', '.join(active)})" if active else "")
            + '. Measure with mode="eval", and switch off randomness the mode does not reach, such as '
            "F.dropout(x) without training=self.training"
        )


def refuse_other_than_mean(loss_of: LossOf, batch: Batch, model: nn.Module, dtype: torch.dtype) -> None:
    """The loss of a batch must be the mean of its samples' losses, or batches could not be averaged by size.

    Compared with the sample-weighted loss of two uneven parts; where batch statistics tie the samples together
    (BatchNorm in training mode), with the loss of the batch repeated, which a mean does not notice.
    """
    tolerance = min(0.05, 1e3 * torch.finfo(dtype).eps)
    if batch.samples >= 2 and not _uses_batch_statistics(model):
        cut = (batch.samples + 2) // 3
        first, rest = rows(batch, 0, cut), rows(batch, cut, batch.samples)
        whole = loss_of(batch)
        expected = (first.samples * loss_of(first) + rest.samples * loss_of(rest)) / batch.samples
        measured = f"{whole:.6g} on a batch, {expected:.6g} from its parts weighted by size"
    else:
        part = rows(batch, 0, max(1, batch.samples // 2))
        whole, expected = loss_of(part), loss_of(twice(part))
        measured = f"{whole:.6g} on a batch, {expected:.6g} on the same samples repeated"
    if not _close(whole, expected, tolerance):
        raise ValueError(
            f"the loss is not a mean over samples: {measured}. Return the mean of the samples' losses "
            '(reduction="mean", no class weights, no ignored targets)'
        )


def refuse_non_finite(loss: float, where: str) -> float:
    """Return `loss` if it is a number."""
    if not math.isfinite(loss):
        raise ValueError(f"the loss is {loss} {where}; curvature needs finite losses: check the weights and the data")
    return loss


def _uses_batch_statistics(model: nn.Module) -> bool:
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    return any(norm.training or norm.running_mean is None for norm in norms)


def _close(a: float, b: float, tolerance: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or abs(a - b) <= tolerance * max(abs(a), abs(b), 1e-3)
