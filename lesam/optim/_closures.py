"""Closures: one or several, plain or of per-sample losses, and the passes made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from . import _checks
from ._gradient_sum import held
from ._loop import Loop
from ._mirror import mirrored
from ._refresh import refresh
from ._savers import TopSamples
from ._step import Phase
from ._workers import may_wait, unsynchronised

Closure = Callable[[], Any]
SampleLosses = Callable[..., Tensor]


def as_list(name: str, closure: object) -> list[Closure]:
    """One closure, or one for each micro-batch, as a list; a ValueError that names the mistake otherwise."""
    several = isinstance(closure, Sequence) and not isinstance(closure, str)
    closures: list[Any] = list(closure) if several else [closure]  # type: ignore[call-overload]
    if not closures:
        raise ValueError(f"{name} is an empty list: give one closure for each micro-batch")
    for one in closures:
        if not callable(one):
            raise ValueError(f"{name} must be a function or a list of functions, got {one!r}")
        _checks.unchanged_by_lightning(one)
        if getattr(one, "_torchdynamo_orig_callable", None) is not None:
            raise ValueError(
                f"{name} was compiled by torch.compile, which cannot trace the backward in it and what the optimizer "
                "does around it. Compile the model instead, and leave the closure plain"
            )
    return closures


def run_passes(loop: Loop, first: list[Closure], second: list[Closure], share: float = 1.0) -> Any:
    """All passes of a step, up to the combined gradient; returns the clean loss.

    That of a ``share`` of the batch is nobody's: then it is the loss at the perturbed weights, as in a one-pass step.
    """
    _checks.not_accumulated_by_accelerate()
    climbs, two, three = loop.climbs, loop.passes > 1, loop.passes == 3
    pairs = [(first, second)]
    if loop.local:
        if two and len(first) != len(second):
            raise ValueError(f"{len(first)} ascent closures cannot be paired with {len(second)} closures")
        pairs = [([a], [b]) for a, b in zip(first if two else second, second, strict=True)]
    refresh_cost = 0.0
    if climbs and loop.parts.direction.refresh_due(loop.bases.steps):
        refresh_cost = refresh(loop, lambda: call(loop, first)) / len(first if loop.local else [1])
    losses: list[Any] = []
    perturbed_losses: list[Any] = []
    with loop.whole_or_nothing():
        for ascents, descents in pairs:
            if two:
                with loop.first_pass(count=len(ascents), share=share):
                    loss = call(loop, ascents)
                if share == 1:
                    losses.append(loss)
            if loop.step.closed:
                continue
            with loop.second_pass(count=len(descents)):
                perturbed_losses.append(call(loop, descents, more=three))
                if three:
                    with mirrored(loop):
                        call(loop, descents)
        step, loss = loop.step, mean(losses or perturbed_losses)
        step.refresh_cost = share * refresh_cost
        value = as_scalar(loss)
        step.loss = None if loss is None else value
        if losses or "rho" not in step.seen:  # the latter: one pass, and nothing was perturbed in it
            step.seen["loss"] = value
        if perturbed_losses and (losses or "rho" in step.seen):
            step.seen["perturbed_loss"] = as_scalar(mean(perturbed_losses)) if losses else value
    return loss


def call(loop: Loop, closures: list[Closure], more: bool = False) -> Any:
    """Run the closures of one pass: their gradients add up, their losses are averaged.

    With ``more`` to come the sum is not complete yet, and no backward need communicate.
    """
    losses = []
    with loop.collecting() as gradients:
        for number, closure in enumerate(closures):
            last = number + 1 == len(closures) and not more  # only the last backward of a pass need communicate
            quiet = not last and may_wait(loop.model, loop.history.fresh)
            if number > 0:
                _checks.dense_gradients(gradients.parameters)
                gradients.settle()
                gradients.wait()
            with unsynchronised(loop.model) if quiet else nullcontext(), torch.enable_grad():
                losses.append(closure())
    return mean(losses)


def call_for_hooks(loop: Loop, closures: list[Closure]) -> Any:
    """Frameworks count on their closure being called; the gradient that is ready must survive it."""
    kept = held(loop.bases.parameters())
    buffers = None if loop.keep_buffers is None else loop.keep_buffers()
    try:
        loop.step.phase = Phase.IDLE
        with torch.enable_grad():
            return mean([closure() for closure in closures])
    finally:
        loop.step.phase = Phase.READY
        if buffers is not None:
            buffers.restore()
        for parameter in loop.bases.parameters():
            parameter.grad = kept.get(parameter)


def mean(losses: Sequence[Any]) -> Any:
    """The mean of the losses of micro-batches; None if they return anything else."""
    if len(losses) == 1:
        return losses[0]
    if not all(isinstance(loss, Tensor | int | float) for loss in losses):
        return None
    return sum(losses[1:], start=losses[0]) / len(losses)


def as_scalar(loss: object) -> Tensor | float:
    """A closure's return value as a number or a 0-d tensor without history."""
    if isinstance(loss, Tensor):
        return loss.detach().mean() if loss.ndim else loss.detach()
    return float(loss) if isinstance(loss, int | float) else float("nan")


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
