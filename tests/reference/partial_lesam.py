"""Partial LE-SAM: the loss budget with a first pass on a part of the batch, and an average for the rest."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, Vector, norm, scaled


class PartialLESAMReference(Reference):
    """``eps = rho u / |u|`` with ``rho = min(sigma / (s |u|), rho_max)``; the descent is on the whole batch.

    ``u = (a g_p + (1 - p) d) / s`` with ``a = min(1, weight p)`` and ``s = a + 1 - p``: ``g_p`` is the gradient of a
    part of the batch, a share ``p`` of it, and ``d`` the average of the gradients that earlier steps descended with. A
    tensor that has none yet has ``u = g_p``. Without a weight there is no average: ``u = g_p`` and ``s = p``.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        base: torch.optim.Optimizer,
        *,
        sigma: Scalar = 0.35,
        share: float = 0.1,
        theta: Scalar = 0.2,
        weight: Scalar | None = 3.0,
        rho_max: Scalar | None = 0.4,
        varrho: Scalar = 1e-12,
    ) -> None:
        super().__init__(parameters, base)
        self.sigma, self.share, self.theta, self.weight = sigma, share, theta, weight
        self.rho_max, self.varrho = rho_max, varrho
        self.d: Vector = [None for _ in self.parameters]

    def step(self, closure: Closure, *, ascent: Closure | None = None, share: float = 1.0) -> Tensor:
        """One step; the loss is that of the batch at ``w + eps``, or at ``w`` where the part is the whole batch."""
        clean, g = self.gradient(ascent or closure)
        of_part = share if self.weight is None else min(1.0, self.at_this_step(self.weight) * share)
        whole = of_part if self.weight is None else of_part + 1.0 - share
        u: Vector = []
        for g_i, d_i in zip(g, self.d, strict=True):
            both = g_i is not None and d_i is not None and share < 1.0 and self.weight is not None
            u.append((of_part * g_i + (1.0 - share) * d_i) / whole if both else g_i)  # type: ignore[operator]
        u_norm = norm(u)
        if u_norm == 0:
            eps = scaled(0.0, u)
        else:
            rho = self.at_this_step(self.sigma) / (whole * u_norm + self.at_this_step(self.varrho))
            if self.rho_max is not None:
                rho = min(rho, self.at_this_step(self.rho_max))
            eps = scaled(rho / u_norm, u)
        loss, g_hat = self.gradient_at(eps, closure)
        theta = self.at_this_step(self.theta)
        for i, g_i in enumerate(g_hat):
            d_i = self.d[i]
            if g_i is not None:
                self.d[i] = g_i.clone() if d_i is None else (1.0 - theta) * d_i + theta * g_i
        self.base_step(g_hat)
        return clean if share == 1.0 else loss
