"""Fisher-SAM (Kim, Li, Hu, Hospedales, ICML 2022)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, Vector


class FisherSAMReference(Reference):
    """``eps = rho F^-1 g / sqrt(g' F^-1 g)`` with the diagonal ``F^-1 = 1 / (1 + eta g^2)``."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        base: torch.optim.Optimizer,
        *,
        rho: Scalar = 0.1,
        eta: Scalar = 1.0,
    ) -> None:
        super().__init__(parameters, base)
        self.rho = rho
        self.eta = eta

    def step(self, closure: Closure) -> Tensor:
        """One step; the largest linear rise of the loss in the ellipsoid ``eps' F eps <= rho^2``."""
        loss, g = self.gradient(closure)
        rho = self.at_this_step(self.rho)
        eta = self.at_this_step(self.eta)

        natural: Vector = []  # F^-1 g
        quadratic = 0.0  # g' F^-1 g
        for g_i in g:
            if g_i is None:
                natural.append(None)
                continue
            inverse_fisher = 1.0 / (1.0 + eta * g_i * g_i)
            natural.append(inverse_fisher * g_i)
            quadratic += float((g_i * inverse_fisher * g_i).sum())

        eps: Vector = []
        for n_i in natural:
            eps.append(None if n_i is None or quadratic == 0 else rho * n_i / math.sqrt(quadratic))

        _, g_hat = self.gradient_at(eps, closure)
        self.base_step(g_hat)
        return loss
