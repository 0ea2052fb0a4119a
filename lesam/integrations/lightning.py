"""Lightning: one callback lets a Trainer with automatic optimisation take sharpness-aware steps.

Lightning owns the loop: it accumulates over batches, divides losses, clips inside the optimizer's closure and scales
for fp16. Each of these would change what an ascent sees. :class:`SharpnessAwareCallback` puts the passes where they
belong: the ascent sees the gradient of the mean loss of all accumulated batches, and what Lightning clips, logs and
steps with is the combined gradient. Fabric needs nothing from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor

from lesam.optim import SharpnessAware

from ._window import Window, as_evaluated, evaluate

Arguments = tuple[Any, ...]  # of training_step: a batch, and its number if it likes


class SharpnessAwareCallback(pl.Callback):
    """Pass one of these to the Trainer when ``configure_optimizers`` returns a SharpnessAware optimizer.

    Works with automatic optimisation: ``accumulate_grad_batches``, ``gradient_clip_val``, all precisions, DDP,
    schedulers, checkpoints, ``Tuner``. With manual optimisation the module calls ``clean()`` and ``perturbed()``
    itself.

    ``training_step`` is called once more for each batch of a step, at the perturbed weights. ``self.log`` does nothing
    then; other side effects (a metric updated by hand) can ask :attr:`replaying`.

    What is validated and saved is the model of the last step, also between accumulated batches and in a signal
    handler; with a schedule-free base, its averaged weights.

    Example:
        >>> trainer = pl.Trainer(callbacks=SharpnessAwareCallback(), accumulate_grad_batches=4, gradient_clip_val=1.0,
        ...                      logger=False, enable_checkpointing=False, accelerator="cpu")
    """

    def __init__(self) -> None:
        self._passes: _Passes | None = None
        self._attached, self._evaluation = ExitStack(), ExitStack()

    @property
    def replaying(self) -> bool:
        """Whether ``training_step`` is being called again, at perturbed weights."""
        return self._passes is not None and self._passes.replaying

    # ------------------------------------------------------------------ the passes

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take part in the Trainer's steps, by its strategy: the Tuner runs without callbacks."""
        self._detach()
        if stage != "fit":
            return
        self._replace(trainer, "save_checkpoint", self._saving(trainer))
        if pl_module.automatic_optimization:
            self._passes = passes = _Passes(trainer, pl_module)
            for name in ("training_step", "backward", "optimizer_step"):
                self._replace(trainer.strategy, name, getattr(passes, name))

    def _replace(self, owner: object, name: str, method: Callable[..., Any]) -> None:
        setattr(owner, name, method)
        self._attached.callback(delattr, owner, name)

    def _detach(self) -> None:
        self._evaluation.close()
        self._attached.close()
        self._passes = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse other optimizers before anything is trained."""
        if self._passes is not None:
            self._passes.prepare()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Drop what an epoch that was cut short has begun."""
        if self._passes is not None:
            self._passes.drop()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Leave none of a step that was interrupted."""
        self._evaluation.close()
        if self._passes is not None:
            self._passes.drop()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Leave the Trainer as it was."""
        self._detach()

    # ------------------------------------------------------------------ what others see of the model

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validate the model of the last step."""
        self._evaluation.enter_context(as_evaluated(*trainer.optimizers))

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Continue where training stood."""
        self._evaluation.close()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the weights that are to be tested and used."""
        for optimizer in trainer.optimizers:
            evaluate(optimizer)

    def _saving(self, trainer: pl.Trainer) -> Callable[..., None]:
        save = trainer.save_checkpoint

        def save_checkpoint(*args: Any, **kwargs: Any) -> None:
            with as_evaluated(*trainer.optimizers):
                save(*args, **kwargs)

        return save_checkpoint


class _Passes:
    """Stands before the Trainer's strategy, and makes passes out of its forwards, backwards and steps."""

    def __init__(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.trainer, self.pl_module = trainer, pl_module
        strategy = trainer.strategy
        self._training_step, self._backward = strategy.training_step, strategy.backward
        self._optimizer_step = strategy.optimizer_step
        self._window: Window[Arguments] | None = None
        self._stepping = False  # the Trainer steps with the batch it is at

    @property
    def replaying(self) -> bool:
        return self._window is not None and self._window.replaying

    def prepare(self) -> Window[Arguments]:
        """The window of the Trainer's optimizer, which is known by the time training starts."""
        optimizer = self.trainer.optimizers[0]
        if self._window is not None and self._window.optimizer is optimizer:
            return self._window
        if not isinstance(optimizer, SharpnessAware):
            raise ValueError(
                f"SharpnessAwareCallback needs a sharpness-aware optimizer from configure_optimizers, got "
                f"{type(optimizer).__name__}: return lesam.LESAM({type(optimizer).__name__}(...)), or leave it out"
            )
        precision = self.trainer.precision_plugin
        scaler = precision.scaler if isinstance(precision, MixedPrecision) else None
        model = self.trainer.strategy.model or self.pl_module
        self._window = Window(optimizer, model, self._replay, scaler)
        return self._window

    def drop(self) -> None:
        """None of the step that was under way."""
        if self._window is not None and self._window.count:
            self._window.drop()

    def _replay(self, arguments: Arguments, count: int) -> None:
        with torch.enable_grad(), _not_logging(self.pl_module):
            output = self._training_step(*arguments)
            loss = output["loss"] if isinstance(output, dict) else output
            if isinstance(loss, Tensor):
                self._backward(loss / count, self.trainer.optimizers[0])

    # ------------------------------------------------------------------ what the Trainer calls

    def training_step(self, *arguments: Any) -> Any:
        """The forward of the first pass."""
        window = self.prepare()
        with self._whole_or_nothing(window):
            window.refresh([arguments])
            window.begin(arguments)
            output = self._training_step(*arguments)
            if output is None and not self._stepping and not window.local:
                window.rest()  # no backward follows
        return output

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The backward of the first pass. Lightning has divided the loss by the number of batches to accumulate."""
        window = self.prepare()
        if window.local:
            loss = loss * self.trainer.accumulate_grad_batches
        with self._whole_or_nothing(window):
            result = self._backward(loss, *args, **kwargs)
            window.end(more=not self._stepping)
        return result

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        """The last batch of a step and, when its closure has run, the second pass over all of them."""
        window = self.prepare()

        def passes() -> Any:
            loss = closure()
            self._average(window)
            window.finish()
            return loss

        self._stepping = True
        try:
            with self._whole_or_nothing(window):
                return self._optimizer_step(_PreparedStep(window), passes, *args, **kwargs)
        finally:
            self._stepping = False
            if window.count:
                window.drop()  # a loss scaler skipped the step, or training_step returned None

    def _average(self, window: Window[Arguments]) -> None:
        """At the end of an epoch fewer batches are left than losses were divided by."""
        divided_by = self.trainer.accumulate_grad_batches
        if not window.local and window.count not in (0, divided_by):
            window.loop.rescale(divided_by / window.count)

    @contextmanager
    def _whole_or_nothing(self, window: Window[Arguments]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            window.drop()
            raise


class _PreparedStep(SharpnessAware):
    """The optimizer as the Trainer steps it: one closure call leaves the combined gradient, and then it steps.

    Shares all state with the optimizer it stands for. A loss scaler is to unscale the combined gradient before it is
    clipped, so unlike that optimizer it leaves unscaling to the scaler.
    """

    _step_supports_amp_scaling = False

    def __init__(self, window: Window[Arguments]) -> None:
        inner = window.optimizer
        torch.optim.Optimizer.__setstate__(self, {"_loop": inner._loop, "defaults": inner.defaults})
        self.window = window

    def step(self, closure: Callable[[], Any] | None = None, **_: Any) -> Any:  # type: ignore[override]
        """Run the closure and take the step that it has prepared, if it has."""
        loss = None if closure is None else closure()
        if self.window.ready:
            # A scaler has unscaled the gradient and found no overflow, or it would not have called.
            with _unscaled(self.window.optimizer, self.window.scaler):
                self.window.take()
        return loss


@contextmanager
def _unscaled(optimizer: Any, scaler: Any) -> Iterator[None]:
    """Tell an optimizer what a loss scaler would, of gradients that are already unscaled and finite."""
    if scaler is None:
        yield
        return
    optimizer.grad_scale, optimizer.found_inf = None, torch.zeros(())
    try:
        yield
    finally:
        del optimizer.grad_scale, optimizer.found_inf


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
