"""Friendly-SAM (Li, Zhou, He, Cheng, Huang, CVPR 2024)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, Vector, norm, scaled


class FriendlySAMReference(Reference):
    """``eps = rho d / |d|`` with ``d = g - weight m``, ``m`` the average of the earlier raw gradients.

    ``m`` becomes ``decay m + (1 - decay) g`` only after ``d`` has been formed. A tensor seen for the first
    time has no average: ``d = g``, then ``m = g``.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        base: torch.optim.Optimizer,
        *,
        rho: Scalar = 0.2,
        weight: Scalar = 1.0,
        decay: Scalar = 0.9,
    ) -> None:
        super().__init__(parameters, base)
        self.rho = rho
        self.weight = weight
        self.decay = decay
        self.m: Vector = [None for _ in self.parameters]

    def step(self, closure: Closure) -> Tensor:
        """One step of the official code."""
        loss, g = self.gradient(closure)
        rho = self.at_this_step(self.rho)
        weight = self.at_this_step(self.weight)
        decay = self.at_this_step(self.decay)

        d: Vector = []
        for i, g_i in enumerate(g):
            m_i = self.m[i]
            if g_i is None:
                d.append(None)
            elif m_i is None:
                d.append(g_i)
                self.m[i] = g_i.clone()
            else:
                d.append(g_i - weight * m_i)
                self.m[i] = decay * m_i + (1.0 - decay) * g_i

        d_norm = norm(d)
        eps = scaled(rho / d_norm, d) if d_norm > 0 else scaled(0.0, d)
        _, g_hat = self.gradient_at(eps, closure)
        self.base_step(g_hat)
        return loss
