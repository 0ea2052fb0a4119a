"""GSAM (Zhuang, Gong, Yuan, Cui, Adam, Dvornek, Tatikonda, Duncan, Liu, ICLR 2022)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, dot, norm, plus, scaled


class GSAMReference(Reference):
    """SAM's ``eps``; descend with ``g_hat - alpha g_perp``, the part of ``g`` orthogonal to ``g_hat``."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        base: torch.optim.Optimizer,
        *,
        rho: Scalar = 0.05,
        alpha: Scalar = 0.4,
    ) -> None:
        super().__init__(parameters, base)
        self.rho = rho
        self.alpha = alpha

    def step(self, closure: Closure) -> Tensor:
        """One step; the projection is over all parameters at once."""
        loss, g = self.gradient(closure)
        rho = self.at_this_step(self.rho)
        alpha = self.at_this_step(self.alpha)

        g_norm = norm(g)
        eps = scaled(rho / g_norm, g) if g_norm > 0 else scaled(0.0, g)
        _, g_hat = self.gradient_at(eps, closure)

        squared = dot(g_hat, g_hat)
        parallel = dot(g, g_hat) / squared if squared > 0 else 0.0
        g_perp = plus(g, scaled(-parallel, g_hat))
        self.base_step(plus(g_hat, scaled(-alpha, g_perp)))
        return loss
