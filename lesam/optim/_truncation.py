"""ESAM's shorter backward: gradients that the ascent does not need are not computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor, nn

from ._climb import Parts
from ._step import Step

if TYPE_CHECKING:
    from ._loop import Loop


def truncate(loop: Loop, step: Step, count: int) -> list[Tensor]:
    """Tensors whose clean gradient nobody needs; the share of the backward that is saved is noted."""
    wanted = loop.parts.subset is not None and step.sharp
    if not wanted or not may_truncate(loop.parts, loop.model, loop.local, count):
        return []
    known = loop.history.with_gradient
    if known is None and step.number > 0:  # a resumed run has to save what it would have saved without the interruption
        known = [p for p in step.trainable if loop.bases.state_of(p)] or step.trainable
    truncated = unneeded(step.perturbable, {id(p) for p in step.chosen}, known)
    step.truncated = sum(p.numel() for p in truncated) / max(1, sum(p.numel() for p in step.perturbable))
    return truncated


def may_truncate(parts: Parts, model: nn.Module | None, local: bool, count: int) -> bool:
    """Whether a first pass over ``count`` micro-batches can leave out gradients of tensors that are not climbed.

    Not where the whole gradient is used otherwise, nor where several processes exchange gradients in this pass, since
    they wait for all of them, nor where each of several micro-batches may take its own way through the model, nor in a
    compiled model, which would be compiled anew for each choice.
    """
    needed = parts.combine.mixes_gradient or parts.combine.products or parts.direction.remembers
    alone = (local or not dist.is_initialized()) and count == 1
    return alone and not needed and not compiled(model)


def unneeded(perturbable: Sequence[Tensor], chosen: set[int], had_gradient: Sequence[Tensor] | None) -> list[Tensor]:
    """Tensors not in ``chosen`` (by id).

    One that had a gradient in every step so far always stays, so that the loss has something to be differentiated by;
    so nothing is left out before a first step has shown which have one.
    """
    if not had_gradient:
        return []
    return [p for p in perturbable if id(p) not in chosen and p is not had_gradient[-1]]


@contextmanager
def without_gradient(parameters: Sequence[Tensor]) -> Iterator[None]:
    """A backward inside does not compute the gradients of ``parameters``; frozen ones stay frozen afterwards."""
    switched = [parameter for parameter in parameters if parameter.requires_grad]
    try:
        for parameter in switched:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in switched:
            parameter.requires_grad_(True)


def compiled(model: nn.Module | None) -> bool:
    """Whether torch.compile is at work in ``model``."""
    if model is None:
        return False
    # By name, since importing torch._dynamo to test for its class takes seconds.
    return any(m._compiled_call_impl is not None or type(m).__name__ == "OptimizedModule" for m in model.modules())
