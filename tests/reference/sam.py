"""SAM (Foret, Kleiner, Mobahi, Neyshabur, ICLR 2021)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, norm, scaled


class SAMReference(Reference):
    """``eps = rho g / |g|``; descend with the gradient at ``w + eps``."""

    def __init__(self, parameters: Sequence[Tensor], base: torch.optim.Optimizer, *, rho: Scalar = 0.05) -> None:
        super().__init__(parameters, base)
        self.rho = rho

    def step(self, closure: Closure) -> Tensor:
        """One step of the paper's Algorithm 1."""
        loss, g = self.gradient(closure)
        g_norm = norm(g)
        rho = self.at_this_step(self.rho)
        eps = scaled(rho / g_norm, g) if g_norm > 0 else scaled(0.0, g)
        _, g_hat = self.gradient_at(eps, closure)
        self.base_step(g_hat)
        return loss
