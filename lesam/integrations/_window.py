"""The passes of a step where a framework owns the loop and hands over one micro-batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Generic, TypeVar

from torch import nn

from lesam.optim import SharpnessAware
from lesam.optim._replay import RandomState

MicroBatch = TypeVar("MicroBatch")


class Window(Generic[MicroBatch]):
    """The micro-batches between two steps, and the passes over them.

    The framework runs forward and backward of each micro-batch once, between :meth:`begin` and :meth:`end`. That is
    the first pass (the only one of a one-pass method). The second pass is run by :meth:`end`: over all micro-batches
    after the last one, or for ``perturbation="local"`` over each micro-batch after its own first pass. Then the
    combined gradient is in the ``.grad`` fields, for the framework to look at, clip and step with.

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
        self.local = optimizer.perturbation == "local"
        several = isinstance(model, nn.parallel.DistributedDataParallel)
        if self.local and several and optimizer.parts.combine.constant(optimizer.steps) is None:
            # Its coefficients follow from each worker's own gradients, but only g_hat is averaged over workers here.
            raise ValueError(
                f'{type(optimizer).__name__} with perturbation="local" needs a plain loop where several processes '
                'train: use perturbation="global" in this framework'
            )
        self.replaying = False
        self.fresh = True  # no micro-batch of the coming step has been seen
        self.ready = False  # the combined gradient of the whole step is there
        self._two = True
        self._pass = ExitStack()
        self._begun: list[tuple[MicroBatch, RandomState]] = []

    @property
    def pending(self) -> bool:
        """Whether a step is under way that has not been taken."""
        return bool(self._begun) or self.ready

    @property
    def perturbed(self) -> bool:
        """Whether the weights are perturbed just now, for the framework's own pass."""
        return bool(self._begun) and not self._two

    def begin(self, micro_batch: MicroBatch) -> None:
        """Before the framework's forward pass."""
        opt = self.optimizer
        self.fresh = self.ready = False
        if self.local and self._begun:
            raise RuntimeError('a micro-batch had no backward pass, which perturbation="local" needs for each')
        if not self._begun:
            self._two = opt.passes == 2
            if self.local:
                # Own gradients for the ascent, the workers' mean for the descent, whatever the framework has in mind.
                self._pass.enter_context(synchronised(self.model, not self._two))
            self._pass.enter_context(opt.clean(self.scaler) if self._two else opt.perturbed(self.scaler))
        # One state for each micro-batch: loading the next one may draw random numbers of its own.
        devices = [group["params"][0].device for group in opt.param_groups if group["params"]]
        self._begun.append((micro_batch, RandomState(devices)))

    def end(self, last: bool, divided_by: int | None = None) -> None:
        """After the framework's backward pass.

        Args:
            last: Whether a step follows.
            divided_by: The number by which the framework has divided the loss of each micro-batch, to make it the
                right one. None: it has been divided by the right number.
        """
        if not (last or self.local):
            return
        count = len(self._begun)
        if divided_by is not None and divided_by != count:
            self.optimizer._loop.rescale(divided_by / count)
        self._pass.close()
        if self._two:
            self._second_pass(count)
        self._begun.clear()
        self.fresh = self.ready = last

    def _second_pass(self, count: int) -> None:
        replay_rng = self.optimizer.replay_rng
        self.replaying = True
        try:
            with self.optimizer.perturbed(self.scaler):
                for number, (micro_batch, random) in enumerate(self._begun, start=1):
                    again = random.replayed() if replay_rng else nullcontext()
                    # Only the last backward of a pass need communicate.
                    with again, synchronised(self.model, number == count):
                        self.replay(micro_batch, count)
        finally:
            self.replaying = False

    def refresh(self, micro_batches: list[MicroBatch]) -> None:
        """Renew Eigen-SAM's eigenvector on these micro-batches if it is due; before the first one of a step."""
        opt = self.optimizer
        if not opt.refresh_due:
            return

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

    def drop(self) -> None:
        """None of the step that was under way: for a framework that skips it or is interrupted."""
        try:
            with self._pass:
                raise _Dropped
        except _Dropped:
            self._pass = ExitStack()
        self._begun.clear()
        self.fresh, self.ready = True, False
        self.optimizer.zero_grad()


class _Dropped(Exception):  # noqa: N818 -- never seen outside
    """Tells the pass under way that it will not be finished."""


@contextmanager
def synchronised(model: nn.Module, on: bool) -> Iterator[None]:
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
