"""Mixed precision: fp16 with a loss scaler, and bf16."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from .._sharpness_aware import SharpnessAware
from .outcome import BrokenPromiseError, Measured, NotApplicableError, each, needs
from .subjects import (
    Batch,
    backward,
    batches,
    bits,
    context_step,
    difference,
    differing,
    loss_of,
    make,
    network,
    plain_step,
    sgd,
    step,
    weights,
)

TWO_PASSES = ("sam", "gsam", "lesam", "lesamplus")


def fp16(device: torch.device) -> Measured:
    """With fp16 and a GradScaler the radius is that of the unscaled loss."""
    expected, data = _radius_in_float32(device)
    worst = 0.0
    for autocast, tolerance in ((False, 1e-4), (True, 5e-2)):
        model, scaler = network(device), _scaler(device)
        opt = make("lesam", sgd(model), model=model, rho_max=None)
        _scaled_step(opt, scaler, model, data[0], autocast=autocast)
        off = abs(float(opt.last.rho) / expected - 1)
        if not off <= tolerance:
            raise BrokenPromiseError(
                f"the radius is {float(opt.last.rho):.4g} with a loss scale of {scaler.get_scale():g} and "
                f"{expected:.4g} without, autocast {'on' if autocast else 'off'}"
            )
        worst = max(worst, off)
    return Measured(worst, "relative difference of the radius")


def overflow(device: torch.device) -> Measured:
    """An overflow in either pass skips the step and leaves nothing behind.

    Weights, BatchNorm statistics and the optimizer's state stay as they were, and the scale is halved once.
    """
    _scaler(device)  # or there is nothing to check
    cases = each(
        (f"{name}, overflow in pass {failing + 1}", partial(_skipped, name, device, failing))
        for name in TWO_PASSES
        for failing in (0, 1)
    )
    return Measured(cases, "skipped steps left nothing behind")


def _skipped(name: str, device: torch.device, failing: int) -> None:
    model, scaler = network(device), _scaler(device)
    opt = make(name, sgd(model), model=model)
    first, second, third = batches(device, 3)
    _scaled_step(opt, scaler, model, first)
    before, state, scale = bits(model.state_dict().values()), copy.deepcopy(opt.state_dict()), scaler.get_scale()
    _scaled_step(opt, scaler, model, second, overflow=failing)
    wrong = differing(before, bits(model.state_dict().values()))
    if wrong:
        raise BrokenPromiseError(f"{wrong} weights and statistics differ after a skipped step")
    if not _same_state(opt.state_dict(), state):
        raise BrokenPromiseError("the optimizer's state differs after a skipped step")
    if scaler.get_scale() != scale / 2:
        raise BrokenPromiseError(f"the loss scale went from {scale:g} to {scaler.get_scale():g}")
    _scaled_step(opt, scaler, model, third)
    if opt.steps != 2 or not bool(weights(model).isfinite().all()):
        raise BrokenPromiseError(
            f"after two steps and a skipped one, {opt.steps} are counted and the weights are {weights(model)}"
        )


def bf16(device: torch.device) -> Measured:
    """Under bf16 autocast the radius stays that of float32 within 5 %.

    And autocast around the whole step is the same as in the closure.
    """
    expected, data = _radius_in_float32(device)
    with needs("bf16 autocast"), torch.autocast(device.type, torch.bfloat16):
        plain_step(network(device), data[0])
    runs, radius = [], math.nan
    for around in (False, True):
        model = network(device)
        opt = make("lesam", sgd(model), rho_max=None)
        for number, batch in enumerate(data):
            # Around a whole step, autocast would reuse its low-precision copies of the weights in the second pass.
            with torch.autocast(device.type, torch.bfloat16) if around else nullcontext():
                step(opt, Autocast(model), batch)
            radius = float(opt.last.rho) if number == 0 else radius
        runs.append(weights(model))
    off = abs(radius / expected - 1)
    if not off <= 5e-2:
        raise BrokenPromiseError(f"the radius is {radius:.4g} under autocast and {expected:.4g} in float32")
    apart = difference(runs[1], runs[0])
    if not apart <= 1e-3:
        raise BrokenPromiseError(
            f"autocast around the step gives weights that differ by {apart:.2g} from autocast in the closure"
        )
    return Measured(off, "relative difference of the radius")


class Autocast(nn.Module):
    """A network whose passes run in bf16."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            result: torch.Tensor = self.model(x)
        return result.float()


def _radius_in_float32(device: torch.device) -> tuple[float, list[Batch]]:
    """LE-SAM's radius in the first step without anything special, and the batches."""
    model, data = network(device), batches(device, 3)
    opt = make("lesam", sgd(model), rho_max=None)
    context_step(opt, model, data[0])
    return float(opt.last.rho), data


def _scaler(device: torch.device) -> Any:
    """A loss scaler with which plain torch can train here."""
    with needs("a GradScaler"):
        scaler = torch.amp.GradScaler(device.type, init_scale=2.0**12)
        model = network(device)
        base = sgd(model)
        with torch.autocast(device.type, torch.float16):
            loss = loss_of(model, batches(device, 1)[0])
        backward(scaler.scale(loss))
        scaler.step(base)
    if not scaler.is_enabled():
        raise NotApplicableError(f"torch.amp.GradScaler is switched off on {device.type}")
    return torch.amp.GradScaler(device.type, init_scale=2.0**12)


def _scaled_step(
    opt: SharpnessAware, scaler: Any, model: nn.Module, batch: Batch, overflow: int | None = None, autocast: bool = True
) -> None:
    """One step as the documentation has it; the loss of pass ``overflow`` is infinite."""
    device = batch[0].device.type
    for number, around in enumerate((opt.clean, opt.perturbed)):
        with around(scaler), torch.autocast(device, torch.float16, enabled=autocast):
            loss = loss_of(model, batch)
            backward(scaler.scale(loss * math.inf if number == overflow else loss))
    scaler.step(opt)
    scaler.update()


def _same_state(a: Any, b: Any) -> bool:
    """Equal, tensors bit for bit."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same_state(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same_state, a, b))
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and differing(bits([a]), bits([b])) == 0
    return bool(a == b)
