"""Closures: one or several, plain or of per-sample losses, and the passes made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from . import _checks
from ._gradients import Carry
from ._loop import Loop
from ._passes import BatchStatistics, unsynchronised
from ._refresh import refresh
from ._run import Phase, as_scalar
from ._savers import TopSamples

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


def run_passes(loop: Loop, first: list[Closure], second: list[Closure]) -> Any:
    """All passes of a step, up to the combined gradient; returns the clean loss."""
    run, two = loop.run, loop.due and loop.parts.direction.passes == 2
    pairs = [(first, second)]
    if loop.local:
        if two and len(first) != len(second):
            raise ValueError(f"{len(first)} ascent closures cannot be paired with {len(second)} closures")
        pairs = [([a], [b]) for a, b in zip(first if two else second, second, strict=True)]
    refresh_cost = 0.0
    if loop.due and loop.parts.direction.refresh_due(loop.step):
        refresh_cost = refresh(loop, lambda: call(loop, first)) / len(first if loop.local else [1])
    losses: list[Any] = []
    perturbed_losses: list[Any] = []
    try:
        for ascents, descents in pairs:
            if two:
                run.micro_batches = len(ascents)
                with loop.first_pass(None, clear_consumed=False):
                    losses.append(call(loop, ascents))
            run.micro_batches = len(descents)
            with loop.second_pass(None, clear_consumed=False):
                perturbed_losses.append(call(loop, descents))
        loss, perturbed_loss = mean(losses or perturbed_losses), mean(perturbed_losses)
    except BaseException:
        loop.abandon()
        raise
    run.refresh_cost = refresh_cost
    if losses or "rho" not in run.seen:  # the latter: one pass, and nothing was perturbed in it
        run.seen["loss"] = as_scalar(loss)
    if losses or "rho" in run.seen:
        run.seen["perturbed_loss"] = as_scalar(perturbed_loss)
    return loss


def call(loop: Loop, closures: list[Closure]) -> Any:
    """Run the closures of one pass: their gradients add up, their losses are averaged."""
    run, losses = loop.run, []
    for number, closure in enumerate(closures):
        last = number + 1 == len(closures)  # only the last backward of a pass need communicate
        sync: AbstractContextManager[None] = (
            nullcontext() if last or not _may_wait(loop) else unsynchronised(loop.model)
        )
        outer, inner = run.carry, Carry(loop.trainable()) if number > 0 else None
        try:
            run.carry = inner or outer
            with sync, torch.enable_grad():
                losses.append(closure())
            if inner is not None:
                with torch.no_grad():
                    inner.merge()
        finally:
            run.carry = outer
            if inner is not None:
                inner.close()
    return mean(losses)


def _may_wait(loop: Loop) -> bool:
    """Whether a backward may leave out communication: the very first of a static graph may not."""
    static = isinstance(loop.model, nn.parallel.DistributedDataParallel) and loop.model.static_graph
    return loop.run.warm or not static


def call_for_hooks(loop: Loop, closures: list[Closure]) -> Any:
    """Frameworks count on their closure being called; the gradient that is ready must survive it."""
    kept = [(p, p.grad) for p in loop.parameters()]
    phase = loop.run.phase
    statistics = None if loop.model is None else BatchStatistics(loop.model)
    try:
        loop.run.phase = Phase.IDLE
        for parameter, _ in kept:
            parameter.grad = None
        with torch.enable_grad():
            return mean([closure() for closure in closures])
    finally:
        loop.run.phase = phase
        if statistics is not None:
            statistics.restore()
        for parameter, grad in kept:
            parameter.grad = grad


def mean(losses: Sequence[Any]) -> Any:
    """The mean of the losses of micro-batches; None if they return none."""
    if len(losses) == 1:
        return losses[0]
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
