"""VaSSO (Li, Giannakis, NeurIPS 2023)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, Vector, norm, scaled


class VaSSOReference(Reference):
    """``eps = rho d / |d|`` with ``d = (1 - theta) d + theta g``, this step's gradient included.

    A tensor seen for the first time starts the average with its gradient, as in the released code.
    """

    def __init__(
        self, parameters: Sequence[Tensor], base: torch.optim.Optimizer, *, rho: Scalar = 0.05, theta: Scalar = 0.2
    ) -> None:
        super().__init__(parameters, base)
        self.rho = rho
        self.theta = theta
        self.d: Vector = [None for _ in self.parameters]

    def step(self, closure: Closure) -> Tensor:
        """One step of the official code."""
        loss, g = self.gradient(closure)
        rho = self.at_this_step(self.rho)
        theta = self.at_this_step(self.theta)

        d: Vector = []
        for i, g_i in enumerate(g):
            d_i = self.d[i]
            if g_i is None:
                d.append(None)
                continue
            self.d[i] = g_i.clone() if d_i is None else (1.0 - theta) * d_i + theta * g_i
            d.append(self.d[i])

        d_norm = norm(d)
        eps = scaled(rho / d_norm, d) if d_norm > 0 else scaled(0.0, d)
        _, g_hat = self.gradient_at(eps, closure)
        self.base_step(g_hat)
        return loss
