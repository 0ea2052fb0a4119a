"""Hugging Face Transformers: a Trainer that takes sharpness-aware steps.

The Trainer of Transformers accumulates over micro-batches, normalises their losses by number or by tokens, clips and
steps without a closure. :class:`SharpnessAwareTrainer` runs the second pass over all micro-batches of a step before the
gradients are clipped, so the ascent sees the gradient of the mean loss of the effective batch, and what is clipped,
logged and stepped with is the combined gradient. :func:`sharpness_aware` does the same to any class derived from
Trainer: ``Seq2SeqTrainer``, TRL's ``SFTTrainer`` and ``DPOTrainer``, ``SentenceTransformerTrainer``. Accelerate on its
own needs nothing from here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
import transformers
from accelerate.optimizer import AcceleratedOptimizer  # type: ignore[import-untyped]
from torch import Tensor, nn

from lesam.optim import METHODS, SharpnessAware

from ._window import Window, as_evaluated, evaluate

MicroBatch = tuple[dict[str, Any], Any]  # inputs, and the number of items that the loss is divided by
NOTES = ("_metrics", "_stored_metrics", "_total_train_tokens", "accum_loss_components")
"""Where Trainers write down, in ``compute_loss``, what they log beside the loss (TRL, sentence-transformers)."""


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
        self._means: bool | None = None  # whether losses are means over their own micro-batch
        super().__init__(*args, **kwargs)

        if sharpness is not None and isinstance(self.optimizer, SharpnessAware):
            raise ValueError(
                f"optimizers has a {type(self.optimizer).__name__}: give that or sharpness={sharpness!r}, not both"
            )
        if self.is_deepspeed_enabled:
            raise ValueError(
                "with DeepSpeed, Accelerate takes the step inside backward(), before there can be a second pass: use "
                'FSDP2 (fsdp="full_shard", fsdp_config={"fsdp_version": 2}) or DistributedDataParallel'
            )
        if hasattr(self, "_buffered_inputs"):  # TRL's GRPO, RLOO, distillation
            raise ValueError(
                f"{type(self).__name__} generates the samples of a step inside the step, and the perturbed "
                "pass would train on others: use a Trainer whose data are given (SFTTrainer, DPOTrainer), or this one "
                "without a sharpness-aware method"
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
        """Train; a step that is under way when training ends is dropped. A schedule-free base is evaluated then."""
        try:
            outcome = super().train(*args, **kwargs)
            evaluate(_unwrapped(self.optimizer))
            return outcome
        finally:
            if self._window is not None:
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
        window, last = self._window, self.accelerator.sync_gradients
        try:
            window.refresh([(samples, num_items_in_batch) for samples in self._samples])
            window.begin((inputs, num_items_in_batch))
            loss = self._pass(model, inputs, num_items_in_batch)
            window.end(more=not last)
            if last:
                window.finish()
        except BaseException:
            window.drop()
            raise
        return loss / self.current_gradient_accumulation_steps if window.local else loss

    def _make_window(self, model: nn.Module) -> Window[MicroBatch]:
        def replay(micro_batch: MicroBatch, count: int) -> None:
            with self._not_noted():
                self._pass(model, *micro_batch)  # divides by count, or rather by items, itself

        optimizer = _unwrapped(self.optimizer)
        if not isinstance(optimizer, SharpnessAware):
            raise RuntimeError(f"the optimizer has become {optimizer!r}, which is not sharpness-aware")
        return Window(optimizer, model, replay, self.accelerator.scaler)

    @torch.no_grad()
    def _check_normalisation(self, model: nn.Module, inputs: dict[str, Any], num_items: Tensor | int | None) -> None:
        """Find out, once, whether the loss is divided by the number of items that it is told.

        Many models take that number and ignore it (BERT's classifier), and so do many functions given as
        ``compute_loss_func``. The Trainer would then leave their losses undivided, and the radius would be that of a
        sum over micro-batches (and workers).
        """
        if self._means is not None:
            return
        told = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        self._means = num_items is None or not told
        if getattr(self, "loss_is_scaled_for_ga", None) is not None:  # the loss's author says what it is
            self._means = False
        elif not self._means:
            model.eval()
            losses = []
            for items in (num_items, 2 * num_items):  # type: ignore[operator]
                with self._not_noted(), self.compute_loss_context_manager():
                    losses.append(self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=items))
            self._means = bool(losses[0] == losses[1] != 0)

    def _pass(self, model: nn.Module, inputs: dict[str, Any], num_items: Any) -> Tensor:
        """The Trainer's own forward and backward."""
        local = self._window is not None and self._window.local
        with self._as_whole_batch() if local else nullcontext(), self._divided_loss():
            if local:
                num_items = self._get_num_items_in_batch([inputs], self.args.device)
            return super().training_step(model, inputs, None if self._means else num_items)

    @contextmanager
    def _divided_loss(self) -> Iterator[None]:
        """A ``compute_loss_func`` that gives means is divided by their number inside; models are by the Trainer."""
        function = self.compute_loss_func
        if self._means and function is not None:
            self.compute_loss_func = lambda *args, **kwargs: (
                function(*args, **kwargs) / self.current_gradient_accumulation_steps
            )
        try:
            yield
        finally:
            self.compute_loss_func = function

    @contextmanager
    def _not_noted(self) -> Iterator[None]:
        """What a forward inside writes down for the logs is forgotten: they are of the clean pass."""
        notes = {name: vars(self)[name] for name in NOTES if name in vars(self)}
        vars(self).update(copy.deepcopy(notes))
        try:
            yield
        finally:
            vars(self).update(notes)

    @contextmanager
    def _as_whole_batch(self) -> Iterator[None]:
        """A micro-batch is a batch of its own inside: its loss is not divided by their number."""
        count = self.current_gradient_accumulation_steps
        self.current_gradient_accumulation_steps = 1
        try:
            yield
        finally:
            self.current_gradient_accumulation_steps = count

    # ------------------------------------------------------------------ what is saved

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save the model of the last step; with a schedule-free base, its averaged weights."""
        with as_evaluated(_unwrapped(self.optimizer)):
            super().save_model(*args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with as_evaluated(_unwrapped(self.optimizer)):
            super()._save_checkpoint(*args, **kwargs)

    def _load_best_model(self) -> None:
        evaluate(_unwrapped(self.optimizer))  # or a later evaluate() would take the weights for trained ones
        super()._load_best_model()


@cache
def sharpness_aware(trainer: type[transformers.Trainer]) -> type[SharpnessAwareTrainer]:
    """The class ``trainer`` with sharpness-aware steps: takes ``sharpness`` and ``sharpness_options`` as well.

    For any class derived from ``transformers.Trainer`` whose data are given. What it logs beside the loss (TRL's token
    accuracies and rewards) is that of the clean pass. The same class every time, a subclass of both ``trainer`` and
    :class:`SharpnessAwareTrainer`.

    Args:
        trainer: ``Seq2SeqTrainer``, ``trl.SFTTrainer``, ``trl.DPOTrainer``, ``SentenceTransformerTrainer``, your own.

    Example:
        >>> Seq2Seq = sharpness_aware(transformers.Seq2SeqTrainer)
        >>> Seq2Seq.__name__, issubclass(Seq2Seq, transformers.Seq2SeqTrainer)
        ('SharpnessAwareSeq2SeqTrainer', True)
    """
    if not (isinstance(trainer, type) and issubclass(trainer, transformers.Trainer)):
        raise ValueError(f"sharpness_aware takes a class derived from transformers.Trainer, got {trainer!r}")
    if trainer is transformers.Trainer:
        return SharpnessAwareTrainer
    if issubclass(trainer, SharpnessAwareTrainer):
        return trainer
    return type(f"SharpnessAware{trainer.__name__}", (SharpnessAwareTrainer, trainer), {"__doc__": trainer.__doc__})


def _unwrapped(optimizer: Any) -> Any:
    """The optimizer inside Accelerate's wrapper."""
    return optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer
