"""Closures: one or several, plain or of per-sample losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._savers import TopSamples

Closure = Callable[[], Any]
SampleLosses = Callable[..., Tensor]


def as_list(name: str, closure: object) -> list[Closure]:
    """One closure, or one for each micro-batch, as a list; a ValueError that names the mistake otherwise."""
    closures: list[Any] = list(closure) if isinstance(closure, Sequence) else [closure]
    if not closures:
        raise ValueError(f"{name} is an empty list: give one closure for each micro-batch")
    for one in closures:
        if not callable(one):
            raise ValueError(f"{name} must be a function or a list of functions, got {one!r}")
        if getattr(one, "_torchdynamo_orig_callable", None) is not None:
            raise ValueError(
                f"{name} was compiled by torch.compile, and a compiled backward cannot see that the weights have "
                "moved. Compile the model instead, and leave the closure plain"
            )
    return closures


def mean(losses: Sequence[Any]) -> Any:
    """The mean of the losses of micro-batches; None if they return none."""
    if any(loss is None for loss in losses):
        return None
    return sum(losses[1:], start=losses[0]) / len(losses)


class SamplePasses:
    """The two passes of a step on per-sample losses, ``fn(indices=None) -> losses``."""

    def __init__(self, fn: SampleLosses, samples: TopSamples | None, zero_grad: Callable[[], None]) -> None:
        if not callable(fn):
            raise ValueError(f"sample_losses must be a function (indices=None) -> losses, got {fn!r}")
        self.fn, self.samples, self.zero_grad = fn, samples, zero_grad
        self.before: Tensor | None = None

    def first(self) -> Tensor:
        """Gradient of the mean loss; remembers the loss of each sample."""
        losses = self._losses(None)
        self.before = losses.detach()
        return self._descend(losses)

    def second(self) -> Tensor:
        """Gradient on the samples whose loss rose most; returns the mean loss of all of them."""
        if self.before is None or self.samples is None or self.samples.gamma == 1.0:
            return self._descend(self._losses(None))
        with torch.no_grad():
            after = self._losses(None)
        self._descend(self._losses(self.samples.keep(after - self.before)))
        return after.mean()

    def _descend(self, losses: Tensor) -> Tensor:
        self.zero_grad()
        loss = losses.mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def _losses(self, indices: Tensor | None) -> Tensor:
        losses = self.fn(indices) if indices is not None else self.fn()
        if not isinstance(losses, Tensor) or losses.ndim != 1:
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ValueError(
                f"sample_losses must return one loss for each sample, a tensor of one dimension; got {shape}. "
                'Use reduction="none"'
            )
        return losses
