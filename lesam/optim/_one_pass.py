"""Directions known before any gradient at ``w``: one pass a step."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ._arithmetic import Space, Vector
from ._bases import Bases
from ._directions import Ascent, Direction, Way
from ._memory import Memory
from .schedules import Scalar, checked, value_at


class Momentum(Direction):
    """Minus the base optimizer's momentum buffer: one pass (MSAM; Becker et al., 2024).

    Takes SGD's ``momentum_buffer`` or Adam's ``exp_avg``, or the buffer called ``name``. The buffer points the way the
    weights will be moved against, so climbing against it is looking ahead along the coming descent. Before a base has
    taken a step there is no buffer, and nothing is perturbed.

    Example:
        >>> Momentum().passes, Momentum("exp_avg_fast")
        (1, Momentum(name='exp_avg_fast'))
    """

    passes = 1
    slope_known = False
    NAMES = ("momentum_buffer", "exp_avg")
    #: bases whose buffer of that name is something else
    OTHERWISE = {"AliG": "points downhill", "AccSGD": "is a copy of the weights"}  # noqa: RUF012

    def __init__(self, name: str | None = None) -> None:
        if name is not None and not isinstance(name, str):
            raise ValueError(f"momentum must be the name of a buffer in the base's state, got {name!r}")
        self.name = name

    def check_bases(self, bases: Bases) -> None:
        if self.name is not None:
            return
        for base in bases.all:
            other = self.OTHERWISE.get(type(base).__name__)
            if other is not None:
                raise ValueError(
                    f"{type(base).__name__}'s momentum_buffer {other}: use SGD(..., momentum=0.9) or an Adam"
                )
            if hasattr(base, "train") and hasattr(base, "eval"):
                raise ValueError(
                    f"{type(base).__name__} is schedule-free: it averages the weights and keeps no momentum buffer to "
                    "climb against. Use SGD(..., momentum=0.9) or an Adam, or a method that climbs the gradient (SAM, "
                    "LESAM), which takes schedule-free bases"
                )
            for index, group in enumerate(base.param_groups):
                if not any(group.get(key) for key in ("betas", "momentum", "beta", "beta1")):
                    raise ValueError(
                        f"Momentum needs a base optimizer with momentum: {type(base).__name__}'s group {index} has "
                        f"momentum={group.get('momentum')!r} and no betas. Use SGD(..., momentum=0.9) or an Adam, or "
                        "name the buffer: MSAM(base, momentum=...)"
                    )

    def buffer(self, parameter: Tensor, bases: Bases) -> Tensor | None:
        """The momentum of ``parameter``, if its base has made one."""
        state = bases.state_of(parameter)
        found = (state.get(name) for name in (self.NAMES if self.name is None else (self.name,)))
        return next((buffer for buffer in found if _fits(buffer, parameter)), None)

    def takes_part(self, parameter: Tensor, memory: Memory, bases: Bases) -> bool:
        return parameter.requires_grad and self.buffer(parameter, bases) is not None

    def refuse_missing(self, parameters: Sequence[Tensor], bases: Bases) -> None:
        """Refuse bases that have taken a step and hold no such buffer: nothing would ever be perturbed."""
        if bases.steps == 0:
            return
        missing = [p for p in parameters if self.buffer(p, bases) is None]
        stepped = [p for p in missing if bases.state_of(p)]
        if not stepped and (len(missing) < len(parameters) or any(base.state for base in bases.all)):
            return  # the base has not seen a gradient of these yet
        there = dict.fromkeys(key for p in parameters for key, value in bases.state_of(p).items() if _fits(value, p))
        wanted = " or ".join(self.NAMES if self.name is None else (self.name,))
        names = ", ".join(type(base).__name__ for base in bases.all)
        kept = f"It keeps {', '.join(there)}: name one that all have" if there else "It keeps none: use another base"
        raise RuntimeError(
            f"{names} has taken a step and keeps no buffer {wanted} for a parameter of shape "
            f"{tuple((stepped or missing)[0].shape)}, which would not be perturbed. {kept}, "
            f'MSAM(base, momentum="{next(iter(there), "...")}")'
        )

    def vector(self, ascent: Ascent) -> Way:
        buffers = [self.buffer(parameter, ascent.bases) for parameter in ascent.space.parameters]
        return Way(ascent.space.vector([b for b in buffers if b is not None]), sign=-1.0, downhill=True)

    def __repr__(self) -> str:
        return "Momentum()" if self.name is None else f"Momentum(name={self.name!r})"


class Stale(Direction):
    r"""A running average of the perturbed gradients of earlier steps: one pass.

    .. math:: d_t = (1 - \theta)\, d_{t-1} + \theta\, \hat g_t, \qquad \text{climbed in step } t + 1

    With ``theta=1`` it is the previous step's gradient (S2-SAM; Ji et al., NeurIPS 2024). A parameter's first gradient
    starts its average, so the first step has none and perturbs nothing.

    Args:
        theta: Weight of the newest gradient.

    Example:
        >>> Stale().passes, Stale(theta=0.5)
        (1, Stale(theta=0.5))
    """

    passes = 1
    remembers = ("stale gradient",)
    slope_known = False
    slope_estimated = True

    def __init__(self, theta: Scalar = 1.0) -> None:
        self.theta = checked("theta", theta, 0.0, 1.0)
        self.averages = theta != 1.0

    def takes_part(self, parameter: Tensor, memory: Memory, bases: Bases) -> bool:
        return parameter.requires_grad and memory.knows("stale gradient", parameter)

    def vector(self, ascent: Ascent) -> Way:
        return Way(ascent.memory.recall("stale gradient", ascent.space))

    def learn_after(self, space: Space, memory: Memory, g_hat: Vector, step: int, scale: float | Tensor) -> None:
        theta = value_at(self.theta, step)
        known = [memory.knows("stale gradient", p) for p in space.parameters]
        d = memory.draft("stale gradient", space)
        scaled = isinstance(scale, Tensor) or scale != 1.0
        if theta == 1.0:
            space.copy_(d, g_hat)
        else:
            if scaled:
                space.scale_(d, scale)
            space.lerp_(d, g_hat, [theta if each else 1.0 for each in known])
        if scaled:
            space.scale_(d, 1.0 / scale)

    def __repr__(self) -> str:
        return "Stale()" if self.theta == 1.0 else f"Stale(theta={self.theta!r})"


def _fits(buffer: object, parameter: Tensor) -> bool:
    """Whether ``buffer`` can be a vector over ``parameter``; quantised or factored ones cannot."""
    number = isinstance(buffer, Tensor) and (buffer.is_floating_point() or buffer.is_complex())
    return number and buffer.shape == parameter.shape  # type: ignore[attr-defined]
