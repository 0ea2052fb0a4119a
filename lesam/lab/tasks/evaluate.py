"""Loss and accuracy of a model on a split, summed on the device and over workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional

from lesam.lab.data import PADDING_LABEL
from lesam.lab.device import widest_float
from lesam.lab.models.modes import evaluating


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Mean cross-entropy, share of right answers, number of images."""

    loss: float
    accuracy: float
    samples: int
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
            if classes:
                part = torch.cat([part, _by_class(logits, labels, classes)])
            sums = part if sums is None else sums + part
    if sums is None:
        sums = torch.zeros(3 + 2 * classes, dtype=torch.float64)
    if fabric is not None and fabric.world_size > 1:
        sums = cast(Tensor, fabric.all_reduce(sums, reduce_op="sum"))
    loss_sum, right_sum, samples, *counts = sums.tolist()
    if not samples:
        raise ValueError("cannot evaluate on a split without images")
    by_class = tuple(zip(map(int, counts[:classes]), map(int, counts[classes:]), strict=True))
    return Score(loss=loss_sum / samples, accuracy=right_sum / samples, samples=int(samples), classes=by_class)


def _by_class(logits: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Right answers of each class, then images of each class; no class has the label that fills a part up."""
    members = labels.unsqueeze(1) == torch.arange(classes, device=labels.device)
    right = members & (logits.argmax(1) == labels).unsqueeze(1)
    return torch.cat([right.sum(0), members.sum(0)]).to(widest_float(labels.device))
