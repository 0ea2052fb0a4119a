"""Hugging Face Transformers: a Trainer that takes sharpness-aware steps.

The Trainer of Transformers accumulates over micro-batches, normalises their losses by number or by tokens, clips and
steps without a closure. :class:`SharpnessAwareTrainer` runs the second pass over all micro-batches of a step before the
gradients are clipped, so the ascent sees the gradient of the mean loss of the effective batch, and what is clipped,
logged and stepped with is the combined gradient. Accelerate on its own needs nothing from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from accelerate.optimizer import AcceleratedOptimizer  # type: ignore[import-untyped]
from torch import Tensor, nn

from lesam.optim import METHODS, SharpnessAware

from ._window import Window

MicroBatch = tuple[dict[str, Any], Any]  # inputs, and the number of items that the loss is divided by


class SharpnessAwareTrainer(transformers.Trainer):
    """A drop-in ``transformers.Trainer`` with a sharpness-aware optimizer.

    Either name a method, to be put around the optimizer that the arguments (or ``optimizers``) ask for, or hand over a
    SharpnessAware optimizer by ``optimizers=(opt, None)``. Everything else is the Trainer's: accumulation, clipping
    (of the combined gradient), schedules, callbacks, checkpoints.

    With ``perturbation="local"`` each micro-batch counts as a batch of its own: it is perturbed by the gradient of its
    own mean loss, and the step takes the mean over micro-batches.

    Args:
        *args: Those of ``transformers.Trainer``.
        sharpness: A name in ``lesam.METHODS``.
        sharpness_options: The method's keyword options, ``{"sigma": 0.35}``.
        **kwargs: Those of ``transformers.Trainer``.

    Example:
        >>> trainer = SharpnessAwareTrainer(nn.Linear(2, 2), sharpness="lesam", sharpness_options={"sigma": 0.1})
        >>> type(trainer.create_optimizer()).__name__
        'LESAM'
    """

    def __init__(
        self,
        *args: Any,
        sharpness: str | None = None,
        sharpness_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if sharpness is not None and sharpness not in METHODS:
            raise ValueError(f"sharpness must be one of {', '.join(METHODS)}, got {sharpness!r}")
        if sharpness is None and sharpness_options:
            raise ValueError(f"sharpness_options={sharpness_options!r} need a method: give sharpness as well")
        self.sharpness, self.sharpness_options = sharpness, dict(sharpness_options or {})
        self._window: Window[MicroBatch] | None = None
        self._samples: list[Any] = []
        super().__init__(*args, **kwargs)

        if sharpness is not None and isinstance(self.optimizer, SharpnessAware):
            raise ValueError(
                f"optimizers has a {type(self.optimizer).__name__}: give that or sharpness={sharpness!r}, not both"
            )

    # ------------------------------------------------------------------ the optimizer

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The optimizer of the arguments, wrapped in the method."""
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if isinstance(_unwrapped(optimizer), SharpnessAware):
            return optimizer
        if self.sharpness is None:
            raise ValueError(
                'SharpnessAwareTrainer has no sharpness-aware method: give sharpness="lesam", or a SharpnessAware '
                f"optimizer by optimizers=(opt, None); got {type(optimizer).__name__}"
            )
        options = {"model": self.model if model is None else model, **self.sharpness_options}
        self.optimizer = METHODS[self.sharpness](optimizer, **options)
        return self.optimizer

    # ------------------------------------------------------------------ the passes

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train; a step that is under way when training ends is dropped."""
        try:
            return super().train(*args, **kwargs)
        finally:
            if self._window is not None and self._window.pending:
                self._window.drop()
            self._window = None

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        """The micro-batches of the coming step."""
        samples, num_items = super().get_batch_samples(*args, **kwargs)
        self._samples = samples
        return samples, num_items

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """The first pass over a micro-batch, and the second pass where it is due. Returns the clean loss."""
        if self._window is None:
            self._window = self._make_window(model)
            self._check_normalisation(model, inputs, num_items_in_batch)
        window = self._window
        count = self.current_gradient_accumulation_steps
        if window.fresh:
            window.refresh([(samples, num_items_in_batch) for samples in self._samples])
        window.begin((inputs, num_items_in_batch))
        try:
            loss = self._pass(model, inputs, num_items_in_batch)
            window.end(last=self.accelerator.sync_gradients)
        except BaseException:
            window.drop()
            raise
        return loss / count if window.local else loss

    def _make_window(self, model: nn.Module) -> Window[MicroBatch]:
        def replay(micro_batch: MicroBatch, count: int) -> None:
            self._pass(model, *micro_batch)  # divides by count, or rather by items, itself

        optimizer = _unwrapped(self.optimizer)
        if not isinstance(optimizer, SharpnessAware):
            raise RuntimeError(f"the optimizer has become {optimizer!r}, which is not sharpness-aware")
        return Window(optimizer, model, replay, self.accelerator.scaler)

    @torch.no_grad()
    def _check_normalisation(self, model: nn.Module, inputs: dict[str, Any], num_items: Tensor | int | None) -> None:
        """Find out, once, whether the model divides its loss by the number of items that it is told.

        Many models take that number and ignore it (BERT's classifier). The Trainer would then leave their losses
        undivided, and the radius would be that of a sum over micro-batches (and workers).
        """
        if num_items is None or not self.model_accepts_loss_kwargs or self.compute_loss_func is not None:
            return
        model.eval()
        losses = []
        for items in (num_items, 2 * num_items):
            with self.compute_loss_context_manager():
                losses.append(self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=items))
        if losses[0] == losses[1] != 0:
            self.model_accepts_loss_kwargs = False

    def _pass(self, model: nn.Module, inputs: dict[str, Any], num_items: Any) -> Tensor:
        """The Trainer's own forward and backward."""
        if self._window is None or not self._window.local:
            return super().training_step(model, inputs, num_items)
        with self._as_whole_batch():
            own_items = self._get_num_items_in_batch([inputs], self.args.device)
            return super().training_step(model, inputs, own_items)

    @contextmanager
    def _as_whole_batch(self) -> Iterator[None]:
        """A micro-batch is a batch of its own inside: its loss is not divided by their number."""
        count = self.current_gradient_accumulation_steps
        self.current_gradient_accumulation_steps = 1
        try:
            yield
        finally:
            self.current_gradient_accumulation_steps = count


def _unwrapped(optimizer: Any) -> Any:
    """The optimizer inside Accelerate's wrapper."""
    return optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer
