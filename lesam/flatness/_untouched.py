"""Look at a model without leaving a trace on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Mode = Literal["eval", "train", "current"]


@contextmanager
def untouched(model: nn.Module, mode: Mode) -> Iterator[None]:
    """Run the body with `model` in `mode`; afterwards module modes and random states are what they were.

    Fused attention kernels have no second derivative, so attention runs on its plain formula inside.
    """
    flags = [(module, module.training) for module in model.modules()]
    first = next(model.parameters(), torch.empty(0))
    accelerators = [first.device] if first.device.type not in ("cpu", "meta") else []
    kind = accelerators[0].type if accelerators else "cuda"
    with torch.random.fork_rng(accelerators, device_type=kind), sdpa_kernel(SDPBackend.MATH):
        try:
            if mode != "current":
                model.train(mode == "train")
            yield
        finally:
            for module, training in flags:
                module.training = training


def copied_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the buffers, for a forward pass that may write to them (running statistics, counters)."""
    return {name: buffer.clone() for name, buffer in model.named_buffers()}
