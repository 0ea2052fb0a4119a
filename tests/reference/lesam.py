"""LE-SAM (Wang, Liu, Xie, Gao, ICML 2026), Algorithm 1."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, norm, scaled


class LESAMReference(Reference):
    """``rho_t = min(sigma_t / (|g| + varrho), rho_max)``, ``eps = rho_t g / |g|``; descend with ``g_hat``."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        base: torch.optim.Optimizer,
        *,
        sigma: Scalar = 0.35,
        rho_max: Scalar | None = 0.4,
        varrho: Scalar = 1e-12,
    ) -> None:
        super().__init__(parameters, base)
        self.sigma = sigma
        self.rho_max = rho_max
        self.varrho = varrho

    def step(self, closure: Closure) -> Tensor:
        """One pass through the loop body of Algorithm 1."""
        loss, g = self.gradient(closure)
        g_norm = norm(g)

        if g_norm == 0:
            eps = scaled(0.0, g)
        else:
            sigma_t = self.at_this_step(self.sigma)
            rho_t = sigma_t / (g_norm + self.at_this_step(self.varrho))
            if self.rho_max is not None:
                rho_t = min(rho_t, self.at_this_step(self.rho_max))
            eps = scaled(rho_t / g_norm, g)

        _, g_hat = self.gradient_at(eps, closure)
        self.base_step(g_hat)
        return loss
