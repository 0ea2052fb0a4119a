"""Metrics: the geometry in which a direction is steepest and a radius is measured.

A metric is a positive diagonal matrix ``P = T^2``. In it the direction ``u`` becomes ``eps_hat = P u / sqrt(u' P u)``,
so all a metric has to say is its root ``T``: ``|T u|`` is the length and ``T (T u)`` the vector.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch  # noqa: F401 -- for the examples

from ._arithmetic import Space, Vector
from .schedules import plain


class Metric(ABC):
    """A diagonal geometry, given by its root ``T``."""

    #: whether ``T`` depends on the gradient at ``w``, which one-pass methods do not have
    needs_gradient: bool

    @abstractmethod
    def root(self, space: Space, w: Vector, g: Vector | None, out: Vector) -> Vector | None:
        """Write ``T`` into ``out`` and return it; None for the identity."""


class Euclidean(Metric):
    """The plain norm, ``T = 1``.

    Example:
        >>> Euclidean()
        Euclidean()
    """

    needs_gradient = False

    def root(self, space: Space, w: Vector, g: Vector | None, out: Vector) -> None:
        return None

    def __repr__(self) -> str:
        return "Euclidean()"


class Adaptive(Metric):
    r"""ASAM's geometry, ``T = |w| + eta`` on tensors with more than one dimension and 1 on the others.

    .. math:: \hat\epsilon = \frac{T^2 u}{\lVert T u \rVert}

    Rescaling two consecutive ReLU layers by ``a`` and ``1 / a`` then rescales the perturbation with them (exactly at
    ``eta = 0``). Kwon et al., *ASAM*, ICML 2021; their code picks the tensors by the name "weight", which also takes in
    the scales of norm layers, ours by the number of dimensions.

    Example:
        >>> space = Space([torch.tensor([[-2.0, 1.0]])])
        >>> w = space.weights()
        >>> Adaptive(eta=0.5).root(space, w, None, out=[[torch.empty(1, 2)]])
        [[tensor([[2.5000, 1.5000]])]]
    """

    needs_gradient = False

    def __init__(self, eta: float = 0.01) -> None:
        self.eta = plain("eta", eta)

    def root(self, space: Space, w: Vector, g: Vector | None, out: Vector) -> Vector:
        space.magnitude_(out, w, self.eta)
        return out

    def __repr__(self) -> str:
        return f"Adaptive(eta={self.eta!r})"


class DiagonalFisher(Metric):
    r"""Fisher-SAM's geometry with the diagonal of one mini-batch, ``P = F^{-1} = 1 / (1 + eta g^2)``.

    .. math:: \hat\epsilon = \frac{F^{-1} u}{\sqrt{u^\top F^{-1} u}}

    Kim et al., *Fisher SAM*, ICML 2022. Not invariant to the scale of the loss.

    Example:
        >>> space = Space([torch.zeros(2)])
        >>> g = [[torch.tensor([0.0, 1.0])]]
        >>> DiagonalFisher(eta=3.0).root(space, space.weights(), g, out=[[torch.empty(2)]])
        [[tensor([1.0000, 0.5000])]]
    """

    needs_gradient = True

    def __init__(self, eta: float = 1.0) -> None:
        self.eta = plain("eta", eta)

    def root(self, space: Space, w: Vector, g: Vector | None, out: Vector) -> Vector:
        if g is None:
            raise RuntimeError("DiagonalFisher needs the gradient at w, and this step has none")
        space.inverse_root_(out, g, self.eta)
        return out

    def __repr__(self) -> str:
        return f"DiagonalFisher(eta={self.eta!r})"
