"""Directions made of running averages: of the gradient (VaSSO, Partial LE-SAM), and of the weights (EMA-SAM)."""

from __future__ import annotations

from torch import Tensor

from ._arithmetic import Space, Vector
from ._bases import Bases
from ._directions import Ascent, Direction, Way, given
from ._memory import Memory
from ._one_pass import Stale
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


class Blended(Stale):
    r"""The gradient of a part of the batch, and an average of earlier steps for the rest of it (Partial LE-SAM).

    .. math:: u_t = \min(1, \kappa p)\, g_p + (1 - p)\, d_{t-1}, \qquad d_t = (1 - \theta)\, d_{t-1} + \theta\, \hat g_t

    :math:`g_p` is the gradient of a share :math:`p` of the batch, and :math:`\lVert u\rVert` the estimate of the slope
    of the whole batch's loss. With :math:`\kappa = 1` it is the best guess at the gradient of the batch, in which the
    samples that were seen count little; :math:`\kappa` weighs them up, since what they have of their own is what a
    sharpness-aware step is after. A first pass on the whole batch climbs along its gradient. In a parameter's first
    step the part stands for the average too.

    Args:
        theta: Weight of the newest gradient in the average.
        weight: :math:`\kappa`, weight of the part in multiples of its share.

    Example:
        >>> Blended().passes, Blended(theta=0.5)
        (2, Blended(theta=0.5, weight=3.0))
    """

    passes = 2
    slope_known = True
    slope_estimated = False

    def __init__(self, theta: Scalar = 0.2, weight: Scalar = 3.0) -> None:
        super().__init__(theta)
        self.averages = True  # with the gradient of the part, at any theta
        self.weight = checked("weight", weight)

    def takes_part(self, parameter: Tensor, memory: Memory, bases: Bases) -> bool:
        return parameter.grad is not None

    def vector(self, ascent: Ascent) -> Way:
        space, memory = ascent.space, ascent.memory
        part, rest = min(1.0, value_at(self.weight, ascent.step) * ascent.share), 1.0 - ascent.share
        if rest == 0.0:
            return Way(given(ascent.g))
        u = ascent.work()
        space.copy_(u, given(ascent.g))
        known = [memory.knows("stale gradient", parameter) for parameter in space.parameters]
        space.lerp_(u, memory.recall("stale gradient", space), [rest / (part + rest) if one else 0.0 for one in known])
        return Way(u, slope_by_length=part + rest)

    def __repr__(self) -> str:
        return f"Blended(theta={self.theta!r}, weight={self.weight!r})"


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
