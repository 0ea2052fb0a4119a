"""LookSAM (Liu, Mai, Chen, Hsieh, You, CVPR 2022)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, Vector, dot, norm, plus, scaled


class LookSAMReference(Reference):
    """SAM at steps 0, k, 2k, ...; between them ``g + alpha |g| / |g_v| g_v``, one pass.

    ``g_v`` is the part of the last ``g_hat`` orthogonal to the ``g`` of its step, over all tensors at once.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        base: torch.optim.Optimizer,
        *,
        rho: Scalar = 0.05,
        alpha: Scalar = 0.7,
        every: int = 5,
    ) -> None:
        super().__init__(parameters, base)
        self.rho = rho
        self.alpha = alpha
        self.every = every
        self.g_v: Vector | None = None

    def step(self, closure: Closure) -> Tensor:
        """One step of Algorithm 1."""
        loss, g = self.gradient(closure)
        g_norm = norm(g)
        if self.t % self.every == 0:
            rho = self.at_this_step(self.rho)
            eps = scaled(rho / g_norm, g) if g_norm > 0 else scaled(0.0, g)
            _, g_hat = self.gradient_at(eps, closure)
            along = dot(g, g_hat) / g_norm**2 if g_norm > 0 else 0.0
            self.g_v = plus(g_hat, scaled(-along, g))
            if norm(self.g_v) < 1e-12 * norm(g_hat):  # rounding alone: climbing has added nothing
                self.g_v = scaled(0.0, g_hat)
            self.base_step(g_hat)
            return loss

        alpha = self.at_this_step(self.alpha)
        if self.g_v is not None and norm(self.g_v) > 0:
            g = plus(g, scaled(alpha * g_norm / norm(self.g_v), self.g_v))
        self.base_step(g)
        return loss
