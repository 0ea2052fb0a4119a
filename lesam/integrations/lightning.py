"""Lightning: one callback lets a Trainer with automatic optimisation take sharpness-aware steps.

Lightning owns the loop: it accumulates over batches, divides losses, clips inside the optimizer's closure and scales
for fp16. Each of these would change what an ascent sees. :class:`SharpnessAwareCallback` puts the passes where they
belong: the ascent sees the gradient of the mean loss of all accumulated batches, and what Lightning clips, logs and
steps with is the combined gradient. Fabric needs nothing from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor

from lesam.optim import SharpnessAware

from ._window import Window

Batch = tuple[Any, int]


class SharpnessAwareCallback(pl.Callback):
    """Pass one of these to the Trainer when ``configure_optimizers`` returns a SharpnessAware optimizer.

    Works with automatic optimisation: ``accumulate_grad_batches``, ``gradient_clip_val``, all precisions, DDP,
    schedulers, checkpoints. With manual optimisation the module calls ``clean()`` and ``perturbed()`` itself, and the
    callback does nothing.

    ``training_step`` is called once more for each batch of a step, at the perturbed weights. ``self.log`` does nothing
    then; other side effects (a metric updated by hand) can ask :attr:`replaying`.

    Example:
        >>> trainer = pl.Trainer(callbacks=SharpnessAwareCallback(), accumulate_grad_batches=4, gradient_clip_val=1.0,
        ...                      logger=False, enable_checkpointing=False, accelerator="cpu")
    """

    def __init__(self) -> None:
        self._window: Window[Batch] | None = None
        self._steps = False  # the step follows on this batch

    @property
    def replaying(self) -> bool:
        """Whether ``training_step`` is being called again, at perturbed weights."""
        return self._window is not None and self._window.replaying

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the optimizer's place in the Trainer."""
        self._window = None
        if not pl_module.automatic_optimization:
            return
        optimizer = trainer.optimizers[0]
        if not isinstance(optimizer, SharpnessAware):
            raise ValueError(
                f"SharpnessAwareCallback needs a sharpness-aware optimizer from configure_optimizers, got "
                f"{type(optimizer).__name__}: return lesam.LESAM({type(optimizer).__name__}(...)), or leave it out"
            )
        precision = trainer.precision_plugin
        scaler = precision.scaler if isinstance(precision, MixedPrecision) else None
        window = Window[Batch](optimizer, trainer.strategy.model or pl_module, self._replay(trainer, pl_module), scaler)
        self._window = window
        trainer.optimizers = [_PreparedStep(optimizer, window)]

    def _replay(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> Callable[[Batch, int], None]:
        def replay(batch: Batch, count: int) -> None:
            with torch.enable_grad(), _not_logging(pl_module):
                output = trainer.strategy.training_step(*_arguments(pl_module, batch))
                loss = output["loss"] if isinstance(output, dict) else output
                if isinstance(loss, Tensor):
                    trainer.strategy.backward(loss / count, trainer.optimizers[0])

        return replay

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Open the first pass."""
        if self._window is None:
            return
        if self._window.fresh:
            self._window.refresh([(batch, batch_idx)])
        self._steps = _steps(trainer, batch_idx)
        self._window.begin((batch, batch_idx))

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the first pass, and run the second when all batches of the step are there."""
        if self._window is not None and not self._window.replaying:
            self._window.end(last=self._steps, divided_by=trainer.accumulate_grad_batches)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Drop a step that was not taken: a loss scaler skipped it, or ``training_step`` returned None."""
        if self._window is not None and self._steps and self._window.pending:
            self._window.drop()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse to look at perturbed weights."""
        self._refuse_while_perturbed("validate", "val_check_interval a multiple of accumulate_grad_batches")

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Refuse to save perturbed weights."""
        self._refuse_while_perturbed("save a checkpoint", "saving after steps, every_n_train_steps")

    def _refuse_while_perturbed(self, what: str, remedy: str) -> None:
        if self._window is not None and self._window.perturbed:
            raise RuntimeError(
                f"cannot {what} between accumulated batches with a one-pass method, whose weights are perturbed until "
                f"the step: use {remedy}"
            )

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Drop what an epoch that was cut short has begun."""
        if self._window is not None and self._window.pending:
            self._window.drop()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Leave none of a step that was interrupted."""
        if self._window is not None:
            self._window.drop()


class _PreparedStep(SharpnessAware):
    """The optimizer as the Trainer sees it: one closure call leaves the combined gradient, and then it steps.

    Shares all state with the optimizer it stands for. A loss scaler is to unscale the combined gradient before it is
    clipped, so unlike that optimizer it leaves unscaling to the scaler.
    """

    _step_supports_amp_scaling = False

    def __init__(self, optimizer: SharpnessAware, window: Window[Batch]) -> None:
        torch.optim.Optimizer.__setstate__(self, {"_loop": optimizer._loop, "defaults": optimizer.defaults})
        self.inner, self.window = optimizer, window

    def step(self, closure: Callable[[], Any] | None = None, **_: Any) -> Any:  # type: ignore[override]
        """Run the closure, in whose hooks the callback completes the passes, and take the step."""
        loss = None if closure is None else closure()
        if not self.window.ready:
            self.window.drop()  # training_step returned None
            return loss
        if self.window.scaler is None:
            self.inner.step()
        else:
            # The scaler has unscaled the gradient and found no overflow, or it would not have called.
            with _unscaled(self.inner):
                self.inner.step()
        self.window.ready = False
        return loss


@contextmanager
def _unscaled(optimizer: SharpnessAware) -> Iterator[None]:
    """What a loss scaler tells an optimizer about gradients it has already unscaled and found finite."""
    told: Any = optimizer
    told.grad_scale, told.found_inf = None, torch.zeros(())
    try:
        yield
    finally:
        del told.grad_scale, told.found_inf


@contextmanager
def _not_logging(pl_module: pl.LightningModule) -> Iterator[None]:
    """``self.log`` does nothing inside: what is logged is the clean pass."""

    def log(*_: Any, **__: Any) -> None:
        return None

    pl_module.log = log  # type: ignore[method-assign]
    try:
        yield
    finally:
        del pl_module.log


def _steps(trainer: pl.Trainer, batch_idx: int) -> bool:
    """Whether the Trainer steps after this batch."""
    done = batch_idx + 1
    accumulated = done % trainer.accumulate_grad_batches == 0
    return accumulated or done == trainer.num_training_batches or trainer.is_last_batch


def _arguments(pl_module: pl.LightningModule, batch: Batch) -> tuple[Any, ...]:
    """``training_step`` takes a batch, and its number if it likes."""
    return batch if len(signature(pl_module.training_step).parameters) > 1 else batch[:1]
