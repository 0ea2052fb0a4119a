"""Combiners: which mixture ``a * g_hat + b * g`` of the two gradients the base optimizer gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .schedules import Scalar, checked, value_at

if TYPE_CHECKING:
    from ._arithmetic import Space, Vector
    from ._memory import Memory

Coefficient = Tensor | float


class Combiner(ABC):
    """Chooses ``(a, b)`` from the inner products of ``g`` and ``g_hat``."""

    #: inner products to compute: some of "gg", "gh", "hh"; the others arrive as None
    products: frozenset[str] = frozenset()
    #: whether ``g`` itself is mixed in, and so must survive the second pass
    mixes_gradient: bool = False
    #: names of the buffers remembered from step to step
    remembers: tuple[str, ...] = ()
    #: whether it may want the gradient at ``w - eps`` as well
    mirrors: bool = False

    def rests(self, step: int) -> bool:
        """Whether this step takes one pass only, and mixes in what earlier ones have taught."""
        return False

    def learn(  # noqa: B027 -- most combiners learn nothing
        self, space: Space, memory: Memory, g: Vector, gg: Tensor, gh: Tensor, scale: float | Tensor, group: Any
    ) -> None:
        """Draft what the two gradients teach; ``g_hat`` is in ``.grad``."""

    def reuse(self, space: Space, memory: Memory, step: int) -> None:  # noqa: B027
        """Mix what was learned into ``g``, which is in ``.grad``."""

    def constant(self, step: int) -> tuple[float, float] | None:
        """``(a, b)`` where they are known before the second pass; else None."""
        return None

    def mirror(self, step: int) -> float | None:
        """Weight of the gradient at ``w - eps``, of a third pass; None: no such pass. Needs :meth:`constant`."""
        return None

    def beside(self, step: int) -> float | None:
        """Weight of ``g_hat - g`` in a step beside the base's, at the base's learning rate; None: no such step."""
        return None

    @abstractmethod
    def coefficients(
        self, gg: Tensor | None, gh: Tensor | None, hh: Tensor | None, step: int
    ) -> tuple[Coefficient, Coefficient]:
        """``(a, b)`` from ``<g,g>, <g,g_hat>, <g_hat,g_hat>``."""


class _Constant(Combiner):
    """Coefficients that do not depend on the gradients."""

    @abstractmethod
    def constant(self, step: int) -> tuple[float, float]: ...

    def coefficients(
        self, gg: Tensor | None, gh: Tensor | None, hh: Tensor | None, step: int
    ) -> tuple[Coefficient, Coefficient]:
        return self.constant(step)


class _Perturbed(_Constant):
    """``g_hat`` alone: SAM's choice.

    Example:
        >>> perturbed.constant(step=0)
        (1.0, 0.0)
    """

    def constant(self, step: int) -> tuple[float, float]:
        return 1.0, 0.0

    def __repr__(self) -> str:
        return "perturbed"


perturbed = _Perturbed()
"""SAM's choice: descend with ``g_hat`` alone, the pair ``(1, 0)``."""


class excess(_Constant):  # noqa: N801 -- combiners read as verbs where they are used
    r"""LE-SAM+: the perturbed loss plus ``alpha`` times the curvature proxy ``L(w + eps) - L(w)``.

    ``form="paper"`` is the gradient of the paper's objective, :math:`(1 + \alpha)\hat g - \alpha g`;
    ``form="reference"`` is what the authors' code computes, :math:`\hat g - \alpha g`. They are not proportional.

    Example:
        >>> excess(0.5).constant(step=0), excess(0.5, form="reference").constant(step=0)
        ((1.5, -0.5), (1.0, -0.5))
    """

    mixes_gradient = True

    def __init__(self, alpha: Scalar, form: str = "paper") -> None:
        self.alpha = checked("alpha", alpha)
        if form not in ("paper", "reference"):
            raise ValueError(f'form must be "paper" or "reference", got {form!r}')
        self.form = form

    def constant(self, step: int) -> tuple[float, float]:
        alpha = value_at(self.alpha, step)
        return (1.0 + alpha if self.form == "paper" else 1.0), -alpha

    def __repr__(self) -> str:
        return f"excess({self.alpha!r}, form={self.form!r})"


class gap(Combiner):  # noqa: N801
    r"""GSAM: take ``alpha`` times the part of ``g`` orthogonal to ``g_hat`` out of ``g_hat``.

    .. math:: \hat g - \alpha\, g_\perp, \qquad
              g_\perp = g - \frac{\langle g, \hat g\rangle}{\lVert\hat g\rVert^2}\, \hat g

    This lowers the surrogate gap ``L(w + eps) - L(w)`` and leaves the perturbed loss alone to first order. Zhuang et
    al., *Surrogate Gap Minimization Improves Sharpness-Aware Training*, ICLR 2022.

    Example:
        >>> one = torch.tensor(1.0)
        >>> gap(0.4).coefficients(one, 0.5 * one, one, step=0)
        (tensor(1.2000), -0.4)
    """

    products = frozenset({"gh", "hh"})
    mixes_gradient = True

    def __init__(self, alpha: Scalar) -> None:
        self.alpha = checked("alpha", alpha)

    def coefficients(
        self, gg: Tensor | None, gh: Tensor | None, hh: Tensor | None, step: int
    ) -> tuple[Coefficient, Coefficient]:
        if gh is None or hh is None:
            raise RuntimeError("gap needs <g, g_hat> and <g_hat, g_hat>")
        alpha = value_at(self.alpha, step)
        return 1.0 + alpha * torch.where(hh == 0, 0.0, gh / hh), -alpha

    def __repr__(self) -> str:
        return f"gap({self.alpha!r})"


class _Renormalized(Combiner):
    r"""SSAM: ``g_hat`` rescaled to the length of ``g``, :math:`\hat g\,\lVert g\rVert / \lVert\hat g\rVert`.

    Tan et al., *Stabilizing Sharpness-aware Minimization through a Simple Renormalization Strategy*, JMLR 2025.

    Example:
        >>> a, b = renormalized.coefficients(torch.tensor(4.0), None, torch.tensor(1.0), step=0)
        >>> a, b
        (tensor(2.), 0.0)
    """

    products = frozenset({"gg", "hh"})

    def coefficients(
        self, gg: Tensor | None, gh: Tensor | None, hh: Tensor | None, step: int
    ) -> tuple[Coefficient, Coefficient]:
        if gg is None or hh is None:
            raise RuntimeError("renormalized needs <g, g> and <g_hat, g_hat>")
        return torch.where(hh > 0, (gg / hh).sqrt(), 1.0), 0.0

    def __repr__(self) -> str:
        return "renormalized"


renormalized = _Renormalized()
"""SSAM's choice: ``g_hat`` rescaled to the length of ``g``, the pair ``(|g| / |g_hat|, 0)``."""


class weighted(Combiner):  # noqa: N801
    r"""WSAM: the sharpness ``L(w + eps) - L(w)`` with a weight of its own, :math:`a = \gamma / (1 - \gamma)`.

    The gradient of :math:`L(w) + a\,(L(w + \epsilon) - L(w))` is :math:`g + a\,(\hat g - g)`. With ``decoupled`` the
    base steps with ``g`` alone, and :math:`w \leftarrow w - \eta\, a\, (\hat g - g)` follows with its learning rate
    :math:`\eta`, past momentum and preconditioner. Yue et al., *Sharpness-Aware Minimization Revisited: Weighted
    Sharpness as a Regularization Term*, KDD 2023.

    Example:
        >>> weighted(0.75, decoupled=False).constant(step=0), weighted(0.75).beside(step=0)
        ((3.0, -2.0), 3.0)
    """

    mixes_gradient = True

    def __init__(self, gamma: Scalar, decoupled: bool = True) -> None:
        self.gamma = checked("gamma", gamma, 0.0, 1.0)
        if not isinstance(decoupled, bool):
            raise ValueError(f"decoupled must be True or False, got {decoupled!r}")
        self.decoupled = decoupled
        if not callable(self.gamma):
            self.weight(0)

    def weight(self, step: int) -> float:
        """``a``, of the sharpness."""
        gamma = value_at(self.gamma, step)
        if gamma == 1.0:
            raise ValueError(f"gamma must be below 1, got {gamma!r}: the weight gamma / (1 - gamma) is infinite there")
        return gamma / (1.0 - gamma)

    def constant(self, step: int) -> tuple[float, float] | None:
        a = self.weight(step)
        return None if self.decoupled or a == 0.0 else (a, 1.0 - a)

    def beside(self, step: int) -> float | None:
        return self.weight(step) if self.decoupled else None

    def coefficients(
        self, gg: Tensor | None, gh: Tensor | None, hh: Tensor | None, step: int
    ) -> tuple[Coefficient, Coefficient]:
        a = 0.0 if self.decoupled else self.weight(step)
        return a, 1.0 - a

    def __repr__(self) -> str:
        return f"weighted({self.gamma!r}, decoupled={self.decoupled!r})"


class Custom(Combiner):
    """A user's own ``(gg, gh, hh) -> (a, b)``, all three as 0-d tensors.

    Example:
        >>> half = Custom(lambda gg, gh, hh: (0.5, 0.5))
        >>> half.coefficients(None, None, None, step=0)
        (0.5, 0.5)
    """

    products = frozenset({"gg", "gh", "hh"})
    mixes_gradient = True

    def __init__(self, function: Callable[..., tuple[Coefficient, Coefficient]]) -> None:
        self.function = function

    def coefficients(
        self, gg: Tensor | None, gh: Tensor | None, hh: Tensor | None, step: int
    ) -> tuple[Coefficient, Coefficient]:
        return self.function(gg, gh, hh)

    def __repr__(self) -> str:
        return f"Custom({self.function!r})"


def as_combiner(combine: object) -> Any:
    """A combiner, or a function made into one; anything else is left for ``Parts`` to refuse."""
    if isinstance(combine, Combiner) or not callable(combine) or isinstance(combine, type):
        return combine
    return Custom(combine)
