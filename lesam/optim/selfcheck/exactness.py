"""Weights that come back bit for bit, and steps that equal those of plain torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

import torch
from torch import Tensor, nn

from ..methods import METHODS
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
    seeded,
    sgd,
    step,
    supports,
    weights,
)

#: how far weights may be from those of plain torch after a few steps, relative to the largest
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-3}  # the latter leaves room for TF32


class OnPurposeError(Exception):
    """Raised in the middle of a pass."""


def _every_method(device: torch.device, case: Callable[[str, torch.device, torch.dtype], None]) -> Measured:
    """The outcome of ``case`` for each method, in float32 and, where torch has it, in bfloat16."""
    dtypes = [dtype for dtype in (torch.float32, torch.bfloat16) if supports(device, dtype)]
    runs = each(
        (f"{name} in {_short(dtype)}", partial(case, name, device, dtype)) for dtype in dtypes for name in METHODS
    )
    return Measured(0, f"weights differ in {runs} runs, {' and '.join(map(_short, dtypes))}")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def restored(device: torch.device) -> Measured:
    """A step at learning rate 0 leaves every weight as it was, bit for bit."""
    return _every_method(device, _restored_at_learning_rate_0)


def _restored_at_learning_rate_0(name: str, device: torch.device, dtype: torch.dtype) -> None:
    model = network(device, dtype)
    opt = make(name, sgd(model))
    first, *data = batches(device, 5, dtype)
    step(opt, model, first)  # EMA-SAM climbs the way the weights have come
    opt.param_groups[0]["lr"] = 0.0
    before = bits(model.parameters())
    moved: list[int] = []
    for batch in data:
        step(opt, model, batch, lambda: moved.append(differing(before, bits(model.parameters()))))
    _expect_same(before, model)
    if not any(moved):
        raise BrokenPromiseError("the weights were never perturbed")


def undone(device: torch.device) -> Measured:
    """An exception in any pass leaves every weight as it was, bit for bit."""
    return _every_method(device, _undone_after_an_exception)


def _undone_after_an_exception(name: str, device: torch.device, dtype: torch.dtype) -> None:
    model = network(device, dtype)
    opt = make(name, sgd(model))
    *data, last = batches(device, 3, dtype)
    for batch in data:
        step(opt, model, batch)
    before = bits(model.parameters())
    moved = 0
    for failing in count():  # the first pass fails, then the second, ... until there are no more
        calls = count()

        def trip(calls: count[int] = calls, failing: int = failing) -> None:
            nonlocal moved
            if next(calls) == failing:
                moved += differing(before, bits(model.parameters()))
                raise OnPurposeError

        try:
            step(opt, model, last, trip)
        except OnPurposeError:
            _expect_same(before, model)
        else:
            break
    if not moved:
        raise BrokenPromiseError("the weights were never perturbed")


def _expect_same(before: list[Tensor], model: nn.Module) -> None:
    wrong = differing(before, bits(model.parameters()))
    if wrong:
        raise BrokenPromiseError(f"{wrong} of {sum(p.numel() for p in model.parameters())} weights differ")


def by_hand(device: torch.device) -> Measured:
    """SAM, LE-SAM and LE-SAM+ equal their formulas in plain torch, in both styles."""
    worst = 0.0
    dtypes = [dtype for dtype in TOLERANCE if supports(device, dtype)]
    for dtype in dtypes:
        for name, reach, alpha in (
            ("sam", lambda norm: 0.05, 0.0),
            ("lesam", lambda norm: (0.05 / norm).clamp(max=0.4), 0.0),
            ("lesamplus", lambda norm: (0.05 / norm).clamp(max=0.4), 0.5),
        ):
            data = batches(device, 4, dtype)
            reference = network(device, dtype)
            base = sgd(reference)
            for batch in data:
                _step_by_hand(reference, base, batch, reach, alpha)
            for style in (step, context_step):
                model = network(device, dtype)
                opt = make(name, sgd(model))
                for batch in data:
                    style(opt, model, batch)
                off = difference(weights(model), weights(reference))
                if not off <= TOLERANCE[dtype]:
                    raise BrokenPromiseError(
                        f"{name} by {style.__name__}() in {_short(dtype)} is off by {off:.2g} of the largest weight"
                    )
                worst = max(worst, off if dtype is dtypes[0] else 0.0)
    return Measured(worst, f"largest relative difference in {_short(dtypes[0])}")


def _step_by_hand(
    model: nn.Module, base: torch.optim.Optimizer, batch: Batch, reach: Callable[[Tensor], Tensor | float], alpha: float
) -> None:
    """``(1 + alpha) g_hat - alpha g`` with ``g_hat`` at ``w + reach(|g|) g / |g|``."""
    parameters = list(model.parameters())
    g = torch.autograd.grad(loss_of(model, batch), parameters)
    norm = torch.stack([x.square().sum() for x in g]).sum().sqrt()
    backup = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for p, x in zip(parameters, g, strict=True):
            p.add_(reach(norm) * x / norm)
    g_hat = torch.autograd.grad(loss_of(model, batch), parameters)
    with torch.no_grad():
        for p, w, x, y in zip(parameters, backup, g, g_hat, strict=True):
            p.copy_(w)
            p.grad = (1 + alpha) * y - alpha * x
    base.step()


def dropout(device: torch.device) -> Measured:
    """Both passes see the same dropout masks, the next step sees others."""
    model = seeded(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 4)), device, torch.float32
    )
    masks: list[Tensor] = []
    model[2].register_forward_hook(lambda _module, _input, output: masks.append(output != 0))
    opt = make("lesam", sgd(model), rho_max=0.01)
    for batch in batches(device, 3):
        step(opt, model, batch)
    flips = sum(differing([first], [second]) for first, second in zip(masks[::2], masks[1::2], strict=True))
    if flips:
        raise BrokenPromiseError(
            f"{flips} of {sum(mask.numel() for mask in masks[::2])} dropout decisions differ between passes"
        )
    if any(torch.equal(a, b) for a, b in zip(masks[::2], masks[2::2], strict=False)):
        raise BrokenPromiseError("two steps saw the same dropout mask: the generator did not advance")
    return Measured(0, "dropout decisions differ in 3 steps")


def channels_last(device: torch.device) -> Measured:
    """Channels-last weights move by rho g / |g| and come back bit for bit."""
    model = seeded(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)),
        device,
        torch.float32,
    ).to(memory_format=torch.channels_last)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 3, 9, 9, generator=generator).to(device, memory_format=torch.channels_last)
    batch = x, torch.randint(0, 4, (8,), generator=generator).to(device)
    with needs("a channels-last convolution"):
        plain_step(model, batch)
    parameters = list(model.parameters())
    if parameters[0].is_contiguous():
        raise NotApplicableError("torch keeps no channels-last weights here")
    before, strides = bits(parameters), [p.stride() for p in parameters]
    opt = make("sam", sgd(model, lr=0.0), rho=1.0)
    with opt.clean():
        backward(loss_of(model, batch))
    start = [p.detach().clone() for p in parameters]
    g = [p.grad.clone() for p in parameters if p.grad is not None]
    norm = torch.stack([one.square().sum() for one in g]).sum().sqrt()
    with opt.perturbed():
        off = max(float((p - w - one / norm).abs().max()) for p, w, one in zip(parameters, start, g, strict=True))
        backward(loss_of(model, batch))
    opt.step()
    if not off <= 1e-5:
        raise BrokenPromiseError(f"the perturbation differs from rho g / |g| by {off:.2g}")
    _expect_same(before, model)
    if strides != [p.stride() for p in parameters]:
        raise BrokenPromiseError(f"the strides {strides} have become {[p.stride() for p in parameters]}")
    return Measured(off, "largest difference of the perturbation")
