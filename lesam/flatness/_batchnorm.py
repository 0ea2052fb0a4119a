"""BatchNorm statistics that belong to a point of the landscape instead of the trained weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lesam.flatness._untouched import copied_buffers


def norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Name to layer, for the BatchNorm layers that keep running statistics."""
    layers = {name: part for name, part in model.named_modules() if isinstance(part, _BatchNorm)}
    return {name: layer for name, layer in layers.items() if layer.running_mean is not None}


def without_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the buffers in which no BatchNorm layer has seen a batch yet."""
    buffers = copied_buffers(model)
    for name in norms(model):
        for kind in ("running_mean", "running_var", "num_batches_tracked"):
            full = f"{name}.{kind}" if name else kind
            buffers[full] = torch.zeros_like(buffers[full])
    return buffers


@contextmanager
def estimating(model: nn.Module) -> Iterator[None]:
    """Run the body with BatchNorm layers, and no others, averaging the statistics of the batches they see."""
    before = [(layer, layer.training, layer.momentum) for layer in norms(model).values()]
    try:
        for layer, _, _ in before:
            layer.training, layer.momentum = True, None  # without a momentum, torch takes the plain mean
        yield
    finally:
        for layer, training, momentum in before:
            layer.training, layer.momentum = training, momentum
