"""S2-SAM (Ji et al., NeurIPS 2024)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, Vector, norm, scaled


class S2SAMReference(Reference):
    """One pass at ``w + rho p / |p|``, ``p`` the gradient the previous step descended with."""

    def __init__(self, parameters: Sequence[Tensor], base: torch.optim.Optimizer, *, rho: Scalar = 0.05) -> None:
        super().__init__(parameters, base)
        self.rho = rho
        self.previous: Vector = [None for _ in self.parameters]

    def step(self, closure: Closure) -> Tensor:
        """One step; the first has nothing to perturb along. The loss is that of the only pass."""
        rho = self.at_this_step(self.rho)
        p_norm = norm(self.previous)
        eps = scaled(rho / p_norm, self.previous) if p_norm > 0 else scaled(0.0, self.previous)
        loss, g_hat = self.gradient_at(eps, closure)
        self.previous = [None if g_i is None else g_i.clone() for g_i in g_hat]
        self.base_step(g_hat)
        return loss
