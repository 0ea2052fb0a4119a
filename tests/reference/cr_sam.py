"""CR-SAM (Wu, Luo, Wunsch, AAAI 2024)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, norm, plus, scaled


class CRSAMReference(Reference):
    """``g_plus + alpha (g_plus + g_minus - 2 g) + beta (g_plus - g_minus)``, from passes at w, w + eps and w - eps."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        base: torch.optim.Optimizer,
        *,
        rho: Scalar = 0.05,
        alpha: Scalar = 0.1,
        beta: Scalar = 0.01,
    ) -> None:
        super().__init__(parameters, base)
        self.rho = rho
        self.alpha = alpha
        self.beta = beta

    def step(self, closure: Closure) -> Tensor:
        """One step of the authors' code."""
        loss, g = self.gradient(closure)
        eps = scaled(self.at_this_step(self.rho) / norm(g), g) if norm(g) > 0 else scaled(0.0, g)
        _, g_plus = self.gradient_at(eps, closure)
        _, g_minus = self.gradient_at(scaled(-1.0, eps), closure)
        curvature = plus(plus(g_plus, g_minus), scaled(-2.0, g))
        slope = plus(g_plus, scaled(-1.0, g_minus))
        alpha, beta = self.at_this_step(self.alpha), self.at_this_step(self.beta)
        self.base_step(plus(plus(g_plus, scaled(alpha, curvature)), scaled(beta, slope)))
        return loss
