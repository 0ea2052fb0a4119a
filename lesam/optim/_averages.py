"""Directions made of running averages: of the gradient (VaSSO), and of the weights (EMA-SAM)."""

from __future__ import annotations

from torch import Tensor

from ._arithmetic import Space, Vector
from ._bases import Bases
from ._directions import Ascent, Direction, Way, given
from ._memory import Memory
from .schedules import Scalar, checked, value_at


class Averaged(Direction):
    r"""A running average of the gradient, this step's included (VaSSO; Li and Giannakis, NeurIPS 2023).

    .. math:: d_t = (1 - \theta)\, d_{t-1} + \theta\, g_t

    The noise of single batches is averaged out of the way up. A parameter's first step has no average yet: ``d = g``.

    Example:
        >>> Averaged(theta=0.2)
        Averaged(theta=0.2)
    """

    remembers = ("averaged gradient",)
    slope_vanishes = True

    def __init__(self, theta: Scalar = 0.2) -> None:
        self.theta = checked("theta", theta, 0.0, 1.0)

    def vector(self, ascent: Ascent) -> Way:
        space, memory, theta = ascent.space, ascent.memory, value_at(self.theta, ascent.step)
        weights = [theta if memory.knows("averaged gradient", p) else 1.0 for p in space.parameters]
        d = memory.draft("averaged gradient", space)
        space.lerp_(d, given(ascent.g), weights)
        return Way(d)

    def __repr__(self) -> str:
        return f"Averaged(theta={self.theta!r})"


class Drift(Direction):
    r"""From a running average of the weights to the weights: one pass (EMA-SAM).

    .. math:: u_t = w_t - v_{t-1}, \qquad v_t = \beta\, v_{t-1} + (1 - \beta)\, w_t

    The way the weights have come lately; climbing it is looking ahead, as with :class:`Momentum`. A parameter's first
    step has no average and perturbs nothing, then ``v = w``.

    Example:
        >>> Drift(decay=0.99).passes
        1
    """

    passes = 1
    remembers = ("averaged weights",)
    slope_known = False

    def __init__(self, decay: Scalar = 0.999) -> None:
        self.decay = checked("decay", decay, 0.0, 1.0)

    def takes_part(self, parameter: Tensor, memory: Memory, bases: Bases) -> bool:
        return parameter.requires_grad and memory.knows("averaged weights", parameter)

    def vector(self, ascent: Ascent) -> Way:
        space, u = ascent.space, ascent.work()
        space.copy_(u, space.weights())
        space.add_(u, ascent.memory.recall("averaged weights", space), -1.0)
        return Way(u, downhill=True)

    def learn_after(self, space: Space, memory: Memory, g_hat: Vector, step: int, scale: float | Tensor) -> None:
        share, name = 1.0 - value_at(self.decay, step), "averaged weights"
        # Several local pairs of passes start from the same weights, which are averaged in once.
        weights = [
            0.0 if memory.drafted(name, p) else share if memory.knows(name, p) else 1.0 for p in space.parameters
        ]
        space.lerp_(memory.draft("averaged weights", space), space.weights(), weights)

    def __repr__(self) -> str:
        return f"Drift(decay={self.decay!r})"
