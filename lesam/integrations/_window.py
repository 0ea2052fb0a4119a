"""The passes of a step where a framework owns the loop and hands over one micro-batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Generic, TypeVar

from torch import nn

from lesam.optim import SharpnessAware
from lesam.optim._aside import at_last_step
from lesam.optim._replay import RandomState

MicroBatch = TypeVar("MicroBatch")


class Window(Generic[MicroBatch]):
    """The micro-batches between two steps, and the passes over them.

    The framework runs forward and backward of each micro-batch once, between :meth:`begin` and :meth:`end`. That is
    the first pass (the only one of a one-pass method). The second pass is run by :meth:`finish` over all of them, or
    for ``perturbation="local"`` over each micro-batch when it ends. Then the combined gradient is in the ``.grad``
    fields, for the framework to look at, clip and step with.

    Whatever looks at the model between two micro-batches finds the weights of the last step.

    Args:
        optimizer: Takes the steps.
        model: The model as the framework wraps it (its DistributedDataParallel is told when to communicate).
        replay: ``replay(micro_batch, count)`` runs forward and backward again, on the loss of ``micro_batch`` divided
            by ``count``.
        scaler: The framework's loss scaler, if it has one.
    """

    def __init__(
        self,
        optimizer: SharpnessAware,
        model: nn.Module,
        replay: Callable[[MicroBatch, int], None],
        scaler: Any = None,
    ) -> None:
        self.optimizer, self.model, self.replay, self.scaler = optimizer, model, replay, scaler
        self.loop = optimizer._loop
        self.local = self.loop.local
        self.replaying = False
        self.ready = False  # the combined gradient of the whole step is there
        self.count = 0  # micro-batches begun since the last step
        self._ended = 0  # those that had a backward pass
        self._two = True
        self._pass, self._aside = ExitStack(), ExitStack()
        self._begun: list[tuple[MicroBatch, RandomState | None]] = []  # those that wait for their second pass
        if isinstance(model, nn.parallel.DistributedDataParallel) and self.loop.model is not None:
            self.loop.model = model  # the optimizer knows the model that was wrapped

    @property
    def fresh(self) -> bool:
        """Whether no micro-batch of the coming step has begun."""
        return self.count == 0 or self.ready

    def begin(self, micro_batch: MicroBatch) -> None:
        """Before the framework's forward pass."""
        opt = self.optimizer
        if self.ready:
            self._reset()
        if self.local and self._begun:
            raise RuntimeError('a micro-batch had no backward pass, which perturbation="local" needs for each')
        self._train()
        self._aside.close()
        if not self._begun:
            self._two = opt.passes == 2
            # One-pass methods: the workers' mean, though the framework has accumulation in mind.
            self._pass.enter_context(synchronised(self.model) if self.local and not self._two else nullcontext())
            self._pass.enter_context(opt.clean(self.scaler) if self._two else opt.perturbed(self.scaler))
        self._begun.append((micro_batch, self._random_state() if self._two else None))
        self.count += 1

    def _train(self) -> None:
        """Schedule-free bases may have been evaluated meanwhile."""
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()

    def _random_state(self) -> RandomState | None:
        """One for each micro-batch: loading the next one may draw random numbers of its own."""
        generators = self.loop.generators
        if generators is None:
            return None
        return RandomState((p.device for p in self.loop.trainable()), generators)

    def end(self, more: bool) -> None:
        """After the framework's backward pass; ``more`` micro-batches follow before the step."""
        self._ended += 1
        if self.local:
            self._complete()
        elif more:
            self.rest()

    def rest(self) -> None:
        """Leave the perturbed weights of a one-pass method until the next micro-batch."""
        if not self._two:
            self._aside.enter_context(at_last_step(self.loop))

    def finish(self) -> None:
        """Before the step, after the last micro-batch: leave the combined gradient, if any of them had a backward."""
        if self.ready or not self._ended:
            return
        self._aside.close()
        if self._begun:
            self._complete()
        self.ready = True

    def _complete(self) -> None:
        """The end of the framework's pass over what has begun, and the second pass."""
        self._pass.close()
        if self._two and self.optimizer.passes == 2:  # a gate may have decided otherwise
            self._second_pass()
        self._begun.clear()

    def _second_pass(self) -> None:
        opt, count = self.optimizer, len(self._begun)
        # Where each worker mixes gradients by coefficients of its own, the optimizer averages the mixture.
        alone = self.local and opt.parts.combine.constant(opt.steps) is None
        self.replaying = True
        try:
            with opt.perturbed(self.scaler):
                for number, (micro_batch, random) in enumerate(self._begun, start=1):
                    # Only the last backward of a pass need communicate.
                    sync = synchronised(self.model, number == count and not alone)
                    with nullcontext() if random is None else random.replayed(), sync:
                        self.replay(micro_batch, count)
        finally:
            self.replaying = False

    def refresh(self, micro_batches: list[MicroBatch]) -> None:
        """Before the first micro-batch of a step, renew Eigen-SAM's eigenvector on these if that is due."""
        opt = self.optimizer
        if not (self.fresh and opt.refresh_due):
            return
        self._train()

        def closure() -> None:
            opt.zero_grad()
            for number, micro_batch in enumerate(micro_batches, start=1):
                with synchronised(self.model, number == len(micro_batches)):
                    self.replay(micro_batch, len(micro_batches))

        self.replaying = True
        try:
            opt.refresh(closure)
        finally:
            self.replaying = False
            opt.zero_grad()

    def take(self) -> None:
        """The step; the framework has looked at the combined gradient."""
        self.optimizer.step()
        self._reset()

    def drop(self) -> None:
        """None of the step that was under way: for a framework that skips it or is interrupted."""
        self._aside.close()
        try:
            with self._pass:
                raise _Dropped
        except _Dropped:
            self._pass = ExitStack()
        self._reset()
        self.optimizer.zero_grad()

    def _reset(self) -> None:
        self._begun.clear()
        self.count = self._ended = 0
        self.ready = False


class _Dropped(Exception):  # noqa: N818 -- never seen outside
    """Tells the pass under way that it will not be finished."""


@contextmanager
def as_evaluated(*optimizers: Any) -> Iterator[None]:
    """The model as it should be validated and saved: that of the last step, averaged where a base is schedule-free."""
    with ExitStack() as around:
        for optimizer in optimizers:
            if not isinstance(optimizer, SharpnessAware):
                continue
            around.enter_context(at_last_step(optimizer._loop))
            if evaluate(optimizer):
                around.callback(optimizer.train)
        yield


def evaluate(optimizer: Any) -> bool:
    """Put averaged weights in place where a base is schedule-free; returns whether they were not there already."""
    if not isinstance(optimizer, SharpnessAware) or not hasattr(optimizer, "eval") or optimizer._loop.bases.evaluating:
        return False
    optimizer.eval()
    return True


@contextmanager
def synchronised(model: nn.Module, on: bool = True) -> Iterator[None]:
    """Whether a pass inside communicates gradients; only DistributedDataParallel can be told."""
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        yield
        return
    before = model.require_backward_grad_sync
    model.require_backward_grad_sync = on
    try:
        yield
    finally:
        model.require_backward_grad_sync = before
