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


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Mean cross-entropy, share of right answers, number of images."""

    loss: float
    accuracy: float
    samples: int


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], fabric: Fabric | None = None) -> Score:
    """Score a model in eval mode; its mode is put back afterwards."""
    was_training = model.training
    model.eval()
    sums: Tensor | None = None
    try:
        for images, labels in batches:
            logits = model(images)
            loss = functional.cross_entropy(logits, labels, reduction="sum", ignore_index=PADDING_LABEL)
            right = (logits.argmax(1) == labels).sum()
            count = (labels != PADDING_LABEL).sum()
            part = torch.stack([loss.double(), right.double(), count.double()])
            sums = part if sums is None else sums + part
    finally:
        model.train(was_training)
    if sums is None:
        sums = torch.zeros(3, dtype=torch.float64)
    if fabric is not None and fabric.world_size > 1:
        sums = cast(Tensor, fabric.all_reduce(sums, reduce_op="sum"))
    loss_sum, right_sum, samples = (float(value) for value in sums)
    if not samples:
        raise ValueError("cannot evaluate on a split without images")
    return Score(loss=loss_sum / samples, accuracy=right_sum / samples, samples=int(samples))
