"""Loss scaling (fp16): gradients of a scaled loss, and the steps a scaler skips."""

from __future__ import annotations

import gc
import inspect
from typing import Any

import torch
from torch import Tensor

from ._arithmetic import Space


class LossScale:
    """The loss scaler given to the passes of one step; none, or one that is switched off, scales by 1."""

    def __init__(self, scaler: Any = None) -> None:
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LossScale) and self.scaler is other.scaler

    __hash__ = None  # type: ignore[assignment]

    @property
    def given(self) -> bool:
        """Whether losses are scaled at all."""
        return self.scaler is not None

    def factor(self) -> Any:
        """What the scaler multiplies gradients by, as a tensor that nobody waits for."""
        if self.scaler is None:
            return 1.0
        read = getattr(self.scaler, "_get_scale_async", None)
        scale = self.scaler.get_scale() if read is None else read()
        if scale is None:
            raise RuntimeError("a scaler was given, but no loss was scaled with it: scaler.scale(loss).backward()")
        return scale

    def unscale(self, space: Space) -> None:
        """Turn the gradients of the scaled loss into those of the loss."""
        if self.given:
            space.scale_(space.gradients(), 1.0 / self.factor())

    def refuse_other(self, found_inf: Tensor | None) -> None:
        """Refuse a scaler that only one of the passes and the step know of."""
        if self.given != (found_inf is not None):
            how, called = ("with", "opt.step()") if found_inf is None else ("without", "scaler.step(opt)")
            raise RuntimeError(
                f"perturbed() was called {how} a scaler, and then {called}: give the scaler to clean() and perturbed() "
                "and step with scaler.step(opt), or use it nowhere"
            )


def refuse_unscaled(scaler: Any, optimizer: object) -> None:
    """Refuse a first gradient that the scaler has unscaled already: it would not unscale the combined one again."""
    states = getattr(scaler, "_per_optimizer_states", None) or {}
    if "UNSCALED" in str(dict(states).get(id(optimizer), {}).get("stage", "")):
        raise RuntimeError(
            "scaler.unscale_(opt) was called between the passes, and unscales once a step: the passes unscale by "
            "themselves. Call it after perturbed(), where .grad holds the combined gradient, or clip with max_norm="
        )


def poison(space: Space, skip: Tensor) -> None:
    """Let the scaler find an overflow of pass one, whatever pass two made of it."""
    first = next(tensor for tensors in space.gradients() for tensor in tensors if tensor.numel() > 0)
    first.mul_(torch.where(skip.to(first.device) > 0, float("nan"), 1.0))


def refuse_unmentioned(grad_norm: float) -> None:
    """Refuse large gradients where a loss scaler is at work that the passes were not told of.

    On a first step such a scaler has scaled a loss and has not been updated yet. Others in the process have: of a
    finished run, or of another model, for whose optimizer they have already unscaled or stepped (GANs).
    """
    if grad_norm < 64:
        return
    # By type(), since isinstance() can run code of the many strange objects in a process.
    for scaler in (thing for thing in gc.get_objects() if issubclass(type(thing), torch.amp.GradScaler)):
        scale, tracker = scaler._scale, scaler._growth_tracker
        if not scaler.is_enabled() or scale is None or tracker is None or float(scale) == 1.0:
            continue
        if float(scale) == scaler._init_scale and int(tracker) == 0 and not scaler._per_optimizer_states:
            raise RuntimeError(
                f"the first gradient has norm {grad_norm:.3g}, and a GradScaler multiplies losses by {float(scale):g}: "
                "the radius would be that of the scaled loss. Give the scaler to clean() and perturbed(), and step "
                "with scaler.step(opt)"
            )


def tell_of_skip(step: Any) -> None:
    """Let Accelerate know that a step was skipped.

    It takes a step for skipped if the scaler never called it, and patches ``opt.step`` to find out. This optimizer
    is always called, so that it can undo its passes, and takes its word back here.
    """
    patched = getattr(step, "__closure__", None) and inspect.getclosurevars(step).nonlocals
    accelerated = (patched or {}).get("accelerated_optimizer")
    if accelerated is not None:
        accelerated._accelerate_step_called = False
