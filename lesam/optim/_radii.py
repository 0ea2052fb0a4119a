"""Radii: how far to climb, given the slope along the way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch  # noqa: F401 -- for the examples
from torch import Tensor

from .schedules import Scalar, checked, plain, value_at


class Reach(NamedTuple):
    """How far a step climbs, as 0-d tensors or numbers: what a radius decides and what it decided it from."""

    rho: Tensor | float
    sigma: float  # the loss budget; NaN where there is none
    capped: Tensor | float  # whether the cap decided; NaN where there is none


class Radius(ABC):
    """Turns the slope ``<g, eps_hat>`` into the distance ``rho``."""

    #: whether the slope is read at all; if not, it need not be computed, nor even be known before the pass
    needs_slope: bool
    #: whether an estimate of the slope will do, where a direction of one pass knows no more
    takes_estimates: bool = False
    #: whether ``rho`` stays finite as the slope goes to zero
    bounded: bool

    @abstractmethod
    def __call__(self, slope: Tensor, step: int) -> Reach:
        """The distance to climb at ``step``."""


class Fixed(Radius):
    """A distance that is given: ``rho`` (SAM; Foret et al., ICLR 2021).

    Example:
        >>> Fixed(0.05)(torch.tensor(2.0), step=0).rho
        0.05
    """

    needs_slope = False
    bounded = True

    def __init__(self, rho: Scalar) -> None:
        self.rho = checked("rho", rho)

    def __call__(self, slope: Tensor, step: int) -> Reach:
        return Reach(value_at(self.rho, step), float("nan"), float("nan"))

    def __repr__(self) -> str:
        return f"Fixed({self.rho!r})"


class LossBudget(Radius):
    r"""The distance at which the loss has risen, to first order, by the budget ``sigma`` (LE-SAM).

    .. math:: \rho_t = \mathrm{sign}(s)\,\min\!\left(\frac{\sigma_t}{|s| + \varrho},\ \rho_{max}\right),
              \qquad s = \langle g, \hat\epsilon \rangle, \qquad \rho_t = 0 \text{ where } s = 0.

    With the gradient direction and the Euclidean metric ``s = |g|``, which is Algorithm 1 of *Fix the Loss, Not the
    Radius* (ICML 2026). The sign makes the loss rise by ``sigma`` also along a direction that points downhill.

    Args:
        sigma: The budget, in units of the loss.
        rho_max: Cap on the distance, or None. Where it decides, the step is SAM's with this radius.
        varrho: Keeps the division finite.

    Example:
        >>> rho, sigma, capped = LossBudget(0.3, rho_max=0.2)(torch.tensor(3.0), step=0)
        >>> rho, sigma, capped
        (tensor(0.1000), 0.3, tensor(False))
    """

    needs_slope = True

    def __init__(self, sigma: Scalar, rho_max: Scalar | None = None, varrho: float = 1e-12) -> None:
        self.sigma = checked("sigma", sigma)
        self.rho_max = None if rho_max is None else checked("rho_max", rho_max)
        self.varrho = plain("varrho", varrho)
        self.bounded = rho_max is not None

    def __call__(self, slope: Tensor, step: int) -> Reach:
        sigma = value_at(self.sigma, step)
        distance = sigma / (slope.abs() + self.varrho)
        if self.rho_max is None:
            return Reach(distance * slope.sign(), sigma, 0.0)
        cap = value_at(self.rho_max, step)
        return Reach(distance.clamp(max=cap) * slope.sign(), sigma, distance >= cap)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(sigma={self.sigma!r}, rho_max={self.rho_max!r})"


class EstimatedBudget(LossBudget):
    r"""The loss budget along a direction of one pass, whose slope is estimated by the direction's own length.

    .. math:: \rho_t = \min\!\left(\frac{\sigma_t}{\lVert d_{t-1}\rVert + \varrho},\ \rho_{max}\right)

    The length of an average of gradients is the slope along it of a loss whose gradient is that average. The rise of
    this batch's loss is smaller, by the cosine between its gradient and the average; the budget is searched for anyway.
    Directions of two passes know their slope, and get it.

    Example:
        >>> EstimatedBudget(0.2)
        EstimatedBudget(sigma=0.2, rho_max=None)
    """

    takes_estimates = True
