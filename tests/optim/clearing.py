"""The ways in which training code clears gradients, and closures that use them; also used on several workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Clearing = Callable[[Any, nn.Module], None]


def not_at_all(opt: Any, model: nn.Module) -> None:
    """Nothing."""


def by_opt(opt: Any, model: nn.Module) -> None:
    opt.zero_grad()


def by_opt_in_place(opt: Any, model: nn.Module) -> None:
    opt.zero_grad(set_to_none=False)


def by_model(opt: Any, model: nn.Module) -> None:
    model.zero_grad()


def by_model_in_place(opt: Any, model: nn.Module) -> None:
    model.zero_grad(set_to_none=False)


def by_base(opt: Any, model: nn.Module) -> None:
    opt.base.zero_grad()


def by_base_in_place(opt: Any, model: nn.Module) -> None:
    opt.base.zero_grad(set_to_none=False)


def by_hand(opt: Any, model: nn.Module) -> None:
    for p in model.parameters():
        p.grad = None


def by_hand_in_place(opt: Any, model: nn.Module) -> None:
    for p in model.parameters():
        if p.grad is not None:
            p.grad.detach_().zero_()


def by_hand_through_data(opt: Any, model: nn.Module) -> None:
    for p in model.parameters():
        if p.grad is not None:
            p.grad.data.zero_()


def by_halves(opt: Any, model: nn.Module) -> None:
    """Two networks under one optimizer, each cleared in its own way."""
    for index, p in enumerate(model.parameters()):
        if p.grad is not None and index < 2:
            p.grad = None
        elif p.grad is not None:
            p.grad.zero_()


CLEARINGS: list[Clearing] = [
    not_at_all,
    by_opt,
    by_opt_in_place,
    by_model,
    by_model_in_place,
    by_base,
    by_base_in_place,
    by_hand,
    by_hand_in_place,
    by_hand_through_data,
    by_halves,
]


def clearing_closure(opt: Any, model: nn.Module, x: Tensor, y: Tensor, clear: Clearing) -> Callable[[], Tensor]:
    """The closure of the README, clearing in its own way."""

    def closure() -> Tensor:
        clear(opt, model)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


def clipping_closure(opt: Any, model: nn.Module, x: Tensor, y: Tensor, max_norm: float) -> Callable[[], Tensor]:
    """A closure that clips its gradient, as many scripts do."""

    def closure() -> Tensor:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        return loss

    return closure


def refusal_of(call: Callable[..., Any], *arguments: Any) -> str | None:
    """The words of the RuntimeError that the call ends in, or None."""
    try:
        call(*arguments)
    except RuntimeError as error:
        return str(error)
    return None
