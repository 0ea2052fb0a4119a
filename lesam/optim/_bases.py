"""The base optimizers: one, or several over disjoint parameters, seen as one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

PREFIX = "lesam_"
STEP = PREFIX + "step"
Base = Optimizer | Sequence[Optimizer]


class Bases:
    """The optimizers that take the steps: groups in order, one step of all.

    Example:
        >>> v, w = torch.zeros(2, requires_grad=True), torch.zeros(3, requires_grad=True)
        >>> bases = Bases([torch.optim.SGD([v], lr=0.1), torch.optim.AdamW([w])])
        >>> len(bases.param_groups), bases.parameters()[1] is w
        (2, True)
    """

    def __init__(self, base: object) -> None:
        self.single = not isinstance(base, list | tuple)
        self.all: tuple[Optimizer, ...] = (base,) if self.single else tuple(base)  # type: ignore[assignment, arg-type]
        if not self.all:
            raise ValueError("base is an empty list: give at least one optimizer")
        for one in self.all:
            _refuse_unusable(one)
        self.refuse_groups()
        self.set_steps(self.steps)

    # ------------------------------------------------------------------ what they hold

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all bases in order; of a single base, the very same list."""
        if self.single:
            return self.all[0].param_groups
        return [group for base in self.all for group in base.param_groups]

    def parameters(self) -> list[Tensor]:
        """All parameters, frozen ones included."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def state_of(self, parameter: Tensor) -> dict[str, Any]:
        """What a base remembers of ``parameter``."""
        if self.single:
            state: dict[str, Any] = self.all[0].state.get(parameter, {})
            return state
        return next((base.state[parameter] for base in self.all if parameter in base.state), {})

    def maximized(self) -> set[Tensor]:
        """Parameters whose base climbs the loss."""
        return {
            parameter
            for base in self.all
            for group in base.param_groups
            if _maximizes(base, group)
            for parameter in group["params"]
        }

    @property
    def defaults(self) -> dict[str, Any]:
        """What all bases have a default for; the first one's values."""
        first, *others = self.all
        return {key: value for key, value in first.defaults.items() if all(key in o.defaults for o in others)}

    # ------------------------------------------------------------------ steps taken

    @property
    def steps(self) -> int:
        """Steps taken so far. The number lives in the groups, so that the bases save and load it."""
        return max((int(group.get(STEP, 0)) for group in self.param_groups), default=0)

    def set_steps(self, count: int) -> None:
        """Write the number of steps taken into every group."""
        for group in self.param_groups:
            group[STEP] = count

    # ------------------------------------------------------------------ numbers a part keeps

    def noted(self, start: Mapping[str, float]) -> dict[str, float]:
        """Numbers by name, where they were noted, else as in ``start``. They live in the groups, as the step count."""
        groups = self.param_groups
        return {name: next((g[PREFIX + name] for g in groups if PREFIX + name in g), start[name]) for name in start}

    def note(self, numbers: Mapping[str, float]) -> None:
        """Write numbers into every group."""
        for group in self.param_groups:
            group.update({PREFIX + name: value for name, value in numbers.items()})

    def keep_only(self, names: Collection[str]) -> None:
        """Remove the numbers that another method's part has noted: nobody would keep them up to date."""
        kept = {STEP, *(PREFIX + name for name in names)}
        for group in self.param_groups:
            for key in [key for key in group if str(key).startswith(PREFIX) and key not in kept]:
                del group[key]

    # ------------------------------------------------------------------ a step

    def step(self, loss: Any = None) -> None:
        """One step of every base; those that want the loss (Polyak step sizes) get a closure that returns it."""
        with _global_hooks_off():  # they have been called for the wrapper, and are again after it
            for base in self.all:
                parameter = inspect.signature(type(base).step).parameters.get("closure")
                if loss is not None and parameter is not None:
                    base.step(_CleanLoss(base, loss))
                elif parameter is not None and parameter.default is parameter.empty:
                    raise RuntimeError(_wants_the_loss(base))
                else:
                    _step_without_loss(base)

    # ------------------------------------------------------------------ schedule-free bases

    @property
    def evaluating(self) -> bool:
        """Whether a schedule-free base has put its averaged weights in place of those that are trained."""
        return any(
            not group.get("train_mode", getattr(base, "train_mode", True))
            for base in self.all
            if hasattr(base, "eval")
            for group in base.param_groups
        )

    def have(self, mode: str) -> bool:
        """Whether any base has ``train()`` (or ``eval()``)."""
        return any(hasattr(base, mode) for base in self.all)

    def switch(self, mode: str) -> None:
        """Call ``train()`` (or ``eval()``) of those that have it."""
        for base in self.all:
            getattr(base, mode, lambda: None)()

    # ------------------------------------------------------------------ refusals

    def refuse_several(self, call: str) -> None:
        """Refuse a call that is one base's to answer."""
        if not self.single:
            names = ", ".join(f"opt.bases[{i}] ({type(base).__name__})" for i, base in enumerate(self.all))
            raise ValueError(f"to which of the bases? Call {call} of one of {names}")

    def refuse_evaluating(self) -> None:
        """Refuse to train averaged weights, which some schedule-free optimizers themselves do without a word."""
        if self.evaluating:
            raise RuntimeError(
                "the base optimizer is in evaluation mode, where the weights are averages: call opt.train() before "
                "the first pass of a step"
            )

    def refuse_groups(self) -> None:
        """Refuse parameters and group keys that would be misunderstood."""
        seen: dict[int, Optimizer] = {}
        for base in self.all:
            for index, group in enumerate(base.param_groups):
                for key in ("rho", "sigma"):
                    if key in group and key not in base.defaults:
                        raise ValueError(
                            f"group {index} of {type(base).__name__} has {key}={group[key]!r}, which nobody reads: "
                            f"give {key}= to the method, and perturb= to choose the parameters that are perturbed"
                        )
                for parameter in group["params"]:
                    if seen.setdefault(id(parameter), base) is not base:
                        raise ValueError(
                            f"a parameter of shape {tuple(parameter.shape)} is in two bases, "
                            f"{type(seen[id(parameter)]).__name__} and {type(base).__name__}: it would be stepped twice"
                        )
                    number = parameter.is_floating_point() or parameter.is_complex()
                    if parameter.requires_grad and not number:
                        raise ValueError(
                            f"a parameter of shape {tuple(parameter.shape)} is {parameter.dtype} and requires a "
                            "gradient; only floating-point and complex ones can be trained"
                        )


def _refuse_unusable(base: object) -> None:
    """Refuse what cannot be wrapped, by what it has: names differ from package to package."""
    if not isinstance(base, Optimizer):
        hint = " Give an instance, SGD(model.parameters(), lr=0.1), not the class" if isinstance(base, type) else ""
        raise ValueError(f"base must be a torch.optim.Optimizer or a list of them, got {base!r}.{hint}")
    name, options = type(base).__name__, inspect.signature(type(base).step).parameters
    if not isinstance(getattr(base, "param_groups", None), list):
        raise ValueError(f"{name} has no param_groups, and trains copies of the parameters: wrap its inner optimizer")
    pairs = (("first_step", "second_step"), ("perturb_weights", "un_perturb"))
    if hasattr(base, "_loop") or any(hasattr(base, one) and hasattr(base, other) for one, other in pairs):
        raise ValueError(f"base is {name}, itself sharpness-aware: wrap its own base instead")
    if isinstance(base, torch.optim.LBFGS):
        raise ValueError(
            "LBFGS runs backwards of its own in the closure, many a step, and cannot be the base of another optimizer: "
            "use SGD, AdamW or any other that steps with the gradient it finds"
        )
    if getattr(base, "is_second_order", False) or "hessian" in options:
        raise ValueError(
            f"{name} differentiates the gradient (backward(create_graph=True)), and the gradient it would get is a "
            "combination of two without a graph: use AdamW, or another base of first order"
        )
    if hasattr(base, "fused_backward"):
        raise ValueError(f"{name} moves the weights inside the backward, so there is no gradient to climb: use AdamW")
    if isinstance(base, torch.optim.SparseAdam):
        raise ValueError("SparseAdam takes sparse gradients only, and sharpness-aware steps need dense ones: use Adam")
    if name == "SCIONLight":
        raise ValueError("SCIONLight keeps its momentum in .grad, which every pass clears: use SCION")


def _maximizes(base: Any, group: dict[str, Any]) -> bool:
    """Whether a group climbs the loss: a key of torch's groups, elsewhere an attribute, maybe of an inner optimizer."""
    if "maximize" in group:
        return bool(group["maximize"])
    inner = getattr(base, "optimizer", getattr(base, "_base_optimizer", None))
    return bool(getattr(base, "maximize", False) or getattr(inner, "maximize", False))


def _step_without_loss(base: Optimizer) -> None:
    try:
        base.step()
    except Exception as error:
        if type(error).__name__ == "NoClosureError":
            raise RuntimeError(_wants_the_loss(base)) from error
        raise


def _wants_the_loss(base: Optimizer) -> str:
    return (
        f"{type(base).__name__} wants the loss, which only a closure gives: call opt.step(closure) with a closure that "
        "returns it, instead of clean() and perturbed()"
    )


class _CleanLoss:
    """The closure a base gets: the loss at ``w``, without a backward, once."""

    def __init__(self, base: Optimizer, loss: Any) -> None:
        self.name, self.loss, self.calls = type(base).__name__, loss, 0
        self.probe = next((p for group in base.param_groups for p in group["params"] if p.grad is not None), None)
        self.version = None if self.probe is None else self.probe._version

    def __call__(self) -> Any:
        self.calls += 1
        if self.calls > 1 or (self.probe is not None and self.probe._version != self.version):
            raise RuntimeError(
                f"{self.name} calls its closure to evaluate the loss at other weights, or more than once a step, and "
                "cannot be the base of another optimizer: use one that steps with the gradient it finds"
            )
        return self.loss


@contextmanager
def _global_hooks_off() -> Iterator[None]:
    """No hook of ``torch.optim.optimizer.register_optimizer_step_*_hook`` inside."""
    registers: Sequence[dict[int, Callable[..., Any]]] = (
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    hooks = [dict(register) for register in registers]
    try:
        for register in registers:
            register.clear()
        yield
    finally:
        for register, kept in zip(registers, hooks, strict=True):
            register.update(kept)
