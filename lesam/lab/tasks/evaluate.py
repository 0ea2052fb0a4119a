"""Negative log-likelihood, accuracy and calibration of a model on a split, summed on the device and over workers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from lesam.lab.data import PADDING_LABEL
from lesam.lab.device import widest_float
from lesam.lab.models.modes import evaluating

if TYPE_CHECKING:
    from lightning_fabric import Fabric

BINS = 15
"""Of the calibration error: intervals of equal width over the confidence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Mean cross-entropy, share of right answers, number of images."""

    loss: float
    """Without smoothing, so that it is the negative log-likelihood of the labels."""
    accuracy: float
    samples: int
    calibration_error: float = math.nan
    r"""Expected calibration error, :math:`\sum_b \lvert \sum_{i \in b} (c_i - a_i) \rvert / n` over bins of the
    confidence :math:`c` (Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017); :math:`a` is 1 for a right
    answer."""
    classes: tuple[tuple[int, int], ...] = ()
    """Right answers and images of each class, where they were asked for."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    fabric: Fabric | None = None,
    *,
    classes: int = 0,
) -> Score:
    """Score a model in eval mode; afterwards every layer is in the mode it had.

    Args:
        model: Gives logits.
        batches: Images and labels.
        fabric: Where scores are summed over workers.
        classes: Number of classes to count by; 0 does not.
    """
    sums: Tensor | None = None
    with evaluating(model):
        for images, labels in batches:
            logits = model(images)
            loss = functional.cross_entropy(logits, labels, reduction="sum", ignore_index=PADDING_LABEL)
            right = (logits.argmax(1) == labels).sum()
            count = (labels != PADDING_LABEL).sum()
            part = torch.stack([value.to(widest_float(images.device)) for value in (loss, right, count)])
            part = torch.cat([part, _overconfidence(logits, labels)])
            if classes:
                part = torch.cat([part, _by_class(logits, labels, classes)])
            sums = part if sums is None else sums + part
    if sums is None:
        sums = torch.zeros(3 + BINS + 2 * classes, dtype=torch.float64)
    if fabric is not None and fabric.world_size > 1:
        sums = cast(Tensor, fabric.all_reduce(sums, reduce_op="sum"))
    loss_sum, right_sum, samples, *rest = sums.tolist()
    overconfidence, counts = rest[:BINS], rest[BINS:]
    if not samples:
        raise ValueError("cannot evaluate on a split without images")
    by_class = tuple(zip(map(int, counts[:classes]), map(int, counts[classes:]), strict=True))
    # A network that answers NaN has no confidence that could be compared with its accuracy.
    error = math.fsum(map(abs, overconfidence)) / samples if math.isfinite(loss_sum) else math.nan
    return Score(
        loss=loss_sum / samples,
        accuracy=right_sum / samples,
        samples=int(samples),
        calibration_error=error,
        classes=by_class,
    )


def _overconfidence(logits: Tensor, labels: Tensor) -> Tensor:
    """Confidence minus right answers, summed in each bin; a sum of products, since scattered sums vary on a GPU."""
    wide = widest_float(labels.device)
    confidence, answer = logits.to(wide).softmax(1).max(1)
    bins = (confidence * BINS).ceil().clamp(1, BINS) - 1
    counted = (bins.unsqueeze(1) == torch.arange(BINS, device=labels.device)) & (labels != PADDING_LABEL).unsqueeze(1)
    return torch.where(counted, (confidence - (answer == labels).to(wide)).unsqueeze(1), 0.0).sum(0)


def _by_class(logits: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Right answers of each class, then images of each class; no class has the label that fills a part up."""
    members = labels.unsqueeze(1) == torch.arange(classes, device=labels.device)
    right = members & (logits.argmax(1) == labels).unsqueeze(1)
    return torch.cat([right.sum(0), members.sum(0)]).to(widest_float(labels.device))
