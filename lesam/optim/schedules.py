"""Schedules: hyper-parameters that change with the step.

A schedule is any callable ``int step -> float``. The ones here are small frozen objects rather than closures, so
that they print well, compare equal, and can be pickled and deep-copied together with the optimizer.

Example:
    >>> sigma = cosine_tail(0.35, start=160, stop=200)
    >>> [round(sigma(step), 3) for step in (0, 160, 180, 199, 500)]
    [0.35, 0.35, 0.168, 0.0, 0.0]
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass

import torch

Schedule = Callable[[int], float]
"""The value of a hyper-parameter at each step; any function of the step will do."""
Scalar = float | Schedule
Predicate = Callable[[int], bool]


def plain(name: str, value: object, low: float = 0.0, high: float = math.inf, *, open_low: bool = False) -> float:
    """``value`` if it is a finite number in range: for what cannot be a schedule."""
    if callable(value):
        raise ValueError(f"{name} must be a number, got the schedule {value!r}")
    if not _is_scalar(value):
        raise ValueError(f"{name} must be {_wanted(low, high, open_low)}, got {value!r}")
    return _number(name, value, low, high, open_low)


def value_at(scalar: Scalar, step: int) -> float:
    """The value of a number or schedule at ``step``."""
    return float(scalar(step)) if callable(scalar) else float(scalar)


def checked(name: str, value: object, low: float = 0.0, high: float = math.inf, *, open_low: bool = False) -> Scalar:
    """``value`` if it is a schedule or a finite number in range; a ValueError that names it otherwise.

    A schedule is checked again at each step, by :class:`Checked`.
    """
    if callable(value):
        return Checked(name, value, low, high, open_low)
    return _number(name, value, low, high, open_low)


def _number(name: str, value: object, low: float, high: float, open_low: bool, where: str = "") -> float:
    wanted = _wanted(low, high, open_low)
    if not _is_scalar(value):
        raise ValueError(f"{name} must be {wanted} or a schedule (step -> number){where}, got {value!r}")
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number) or number < low or number > high or (open_low and number == low):
        raise ValueError(f"{name} must be {wanted}{where}, got {value!r}")
    return number


def _wanted(low: float, high: float, open_low: bool) -> str:
    above = f" {'>' if open_low else '>='} {low:g}" if low > -math.inf else ""
    return (f"a number{above}" if above else "a finite number") + (f" and <= {high:g}" if high < math.inf else "")


def _is_scalar(value: object) -> bool:
    """Whether ``value`` is one real number: Python's, NumPy's, or a tensor of no dimensions."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return False
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return isinstance(value, numbers.Real)
    no_number = "bool" in str(dtype) or "complex" in str(dtype) or "meta" in str(getattr(value, "device", ""))
    return getattr(value, "ndim", None) == 0 and not no_number


@dataclass(frozen=True)
class Checked:
    """A user's schedule whose values are validated as they come."""

    name: str
    schedule: Callable[[int], float]
    low: float
    high: float
    open_low: bool

    def __call__(self, step: int) -> float:
        value = self.schedule(step)
        return _number(self.name, value, self.low, self.high, self.open_low, f" at step {step}")


@dataclass(frozen=True)
class constant:  # noqa: N801 -- schedules read as functions where they are used
    """``value`` at every step.

    Example:
        >>> constant(0.1)(1000)
        0.1
    """

    value: float

    def __call__(self, step: int) -> float:
        return self.value


@dataclass(frozen=True)
class cosine_tail:  # noqa: N801
    """``value`` before ``start``, then a half cosine to ``end``, reached at ``stop - 1`` and kept.

    ``end + (value - end) / 2 * (1 + cos(pi * (t - start) / (stop - start - 1)))``; where ``stop - start <= 1`` it is
    ``end`` from ``start`` on. LE-SAM anneals its budget this way over the last stretch of training.

    Example:
        >>> cosine_tail(1.0, start=0, stop=3)(1)
        0.5
    """

    value: float
    start: int
    stop: int
    end: float = 0.0

    def __call__(self, step: int) -> float:
        if step < self.start:
            return self.value
        if step >= self.stop - 1:
            return self.end
        turn = math.pi * (step - self.start) / (self.stop - self.start - 1)
        return self.end + (self.value - self.end) / 2 * (1 + math.cos(turn))


@dataclass(frozen=True)
class warmup:  # noqa: N801
    """A line from ``start`` at step 0 to ``schedule`` (a number or a schedule) at ``steps``, which then takes over.

    Example:
        >>> ramp = warmup(0.3, steps=10)
        >>> ramp(0), ramp(5), ramp(10)
        (0.0, 0.15, 0.3)
    """

    schedule: Scalar
    steps: int
    start: float = 0.0

    def __call__(self, step: int) -> float:
        target = value_at(self.schedule, step)
        if step >= self.steps:
            return target
        return self.start + (target - self.start) * step / self.steps


@dataclass(frozen=True)
class per_epoch:  # noqa: N801
    """Any schedule, read once an epoch: ``schedule(step // steps_per_epoch)``.

    Example:
        >>> sigma = per_epoch(cosine_tail(0.35, start=160, stop=200), steps_per_epoch=391)
        >>> sigma(159 * 391 + 390), sigma(199 * 391)
        (0.35, 0.0)
    """

    schedule: Schedule
    steps_per_epoch: int

    def __post_init__(self) -> None:
        if self.steps_per_epoch < 1:
            raise ValueError(f"steps_per_epoch must be at least 1, got {self.steps_per_epoch!r}")

    def __call__(self, step: int) -> float:
        return self.schedule(step // self.steps_per_epoch)


@dataclass(frozen=True)
class proportional_to_lr:  # noqa: N801
    """GSAM's radius, tied to the learning rate and clamped to ``[rho_min, rho_max]``.

    ``rho = rho_min + (rho_max - rho_min) * (lr - lr_min) / (lr_max - lr_min)``. ``lr`` is the base optimizer's first
    group's; ``lr_max`` defaults to its value now. The clamp matters: a warm-up below ``lr_min`` would otherwise give
    a negative radius (Zhuang et al., ICLR 2022, give the formula without it).

    Example:
        >>> base = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        >>> rho = proportional_to_lr(base, rho_max=0.04, rho_min=0.02)
        >>> base.param_groups[0]["lr"] = 0.05
        >>> round(rho(0), 6)
        0.03
    """

    base: torch.optim.Optimizer
    rho_max: float
    rho_min: float = 0.0
    lr_max: float | None = None
    lr_min: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.rho_min <= self.rho_max:
            raise ValueError(f"need 0 <= rho_min <= rho_max, got rho_min={self.rho_min!r}, rho_max={self.rho_max!r}")
        if self.lr_max is None:
            object.__setattr__(self, "lr_max", self._lr())
        if self.lr_max == self.lr_min:
            raise ValueError(f"lr_max and lr_min must differ, both are {self.lr_min!r}")

    def _lr(self) -> float:
        return float(self.base.param_groups[0]["lr"])

    def __call__(self, step: int) -> float:
        lr_max = self.lr_min + 1.0 if self.lr_max is None else self.lr_max
        share = (self._lr() - self.lr_min) / (lr_max - self.lr_min)
        return self.rho_min + (self.rho_max - self.rho_min) * min(max(share, 0.0), 1.0)


@dataclass(frozen=True)
class every:  # noqa: N801
    """True at steps 0, k, 2k, ...: for ``when=``, sharpness-aware every k-th step only.

    Example:
        >>> [every(3)(step) for step in range(4)]
        [True, False, False, True]
    """

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"every(k) needs k >= 1, got {self.k!r}")

    def __call__(self, step: int) -> bool:
        return step % self.k == 0


@dataclass(frozen=True)
class from_step:  # noqa: N801
    """True from step ``n`` on: for ``when=``, a late switch from the base optimizer to the sharpness-aware one.

    Example:
        >>> from_step(2)(1), from_step(2)(2)
        (False, True)
    """

    n: int

    def __call__(self, step: int) -> bool:
        return step >= self.n
