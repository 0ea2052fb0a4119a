"""Stable SAM (Tan, Zhang, Liu, Wang, Hao, JMLR 2025)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, norm, scaled


class SSAMReference(Reference):
    """SAM's perturbation; descend with ``(|g| / |g_hat|) g_hat``, which is as long as ``g``."""

    def __init__(self, parameters: Sequence[Tensor], base: torch.optim.Optimizer, *, rho: Scalar = 0.05) -> None:
        super().__init__(parameters, base)
        self.rho = rho

    def step(self, closure: Closure) -> Tensor:
        """One step; a vanishing ``g_hat`` stays zero."""
        loss, g = self.gradient(closure)
        rho = self.at_this_step(self.rho)

        g_norm = norm(g)
        eps = scaled(rho / g_norm, g) if g_norm > 0 else scaled(0.0, g)
        _, g_hat = self.gradient_at(eps, closure)

        g_hat_norm = norm(g_hat)
        self.base_step(scaled(g_norm / g_hat_norm, g_hat) if g_hat_norm > 0 else g_hat)
        return loss
