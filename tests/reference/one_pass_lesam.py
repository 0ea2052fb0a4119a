"""One-pass LE-SAM: the loss budget along an average of the last perturbed gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, Vector, norm, scaled


class OnePassLESAMReference(Reference):
    """One pass at ``w + rho d / |d|`` with ``rho = min(sigma / (|d| + varrho), rho_max)``.

    ``d`` is the average of the gradients that earlier steps descended with; a tensor's first gradient starts it.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        base: torch.optim.Optimizer,
        *,
        sigma: Scalar = 0.2,
        theta: Scalar = 0.2,
        rho_max: Scalar | None = 0.4,
        varrho: Scalar = 1e-12,
    ) -> None:
        super().__init__(parameters, base)
        self.sigma, self.theta, self.rho_max, self.varrho = sigma, theta, rho_max, varrho
        self.d: Vector = [None for _ in self.parameters]

    def step(self, closure: Closure) -> Tensor:
        """One step; the first has nothing to climb along. The loss is that of the only pass."""
        sigma, theta = self.at_this_step(self.sigma), self.at_this_step(self.theta)
        d_norm = norm(self.d)
        if d_norm > 0:
            rho = sigma / (d_norm + self.at_this_step(self.varrho))
            if self.rho_max is not None:
                rho = min(rho, self.at_this_step(self.rho_max))
            eps = scaled(rho / d_norm, self.d)
        else:
            eps = scaled(0.0, self.d)
        loss, g_hat = self.gradient_at(eps, closure)

        for i, g_i in enumerate(g_hat):
            d_i = self.d[i]
            if g_i is not None:
                self.d[i] = g_i.clone() if d_i is None else (1.0 - theta) * d_i + theta * g_i
        self.base_step(g_hat)
        return loss
