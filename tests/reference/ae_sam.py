"""AE-SAM (Jiang, Yang, Zhang, Kwok, ICLR 2023)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, norm, scaled


class AESAMReference(Reference):
    """SAM where ``|g|^2`` is at least its running mean plus ``c_t`` running deviations, else a plain step.

    Mean and variance are running averages that start from zero and have seen the ``|g|^2`` they are asked about.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        base: torch.optim.Optimizer,
        *,
        rho: Scalar = 0.05,
        threshold: Scalar = 0.0,
        decay: Scalar = 0.9,
    ) -> None:
        super().__init__(parameters, base)
        self.rho = rho
        self.threshold = threshold
        self.decay = decay
        self.mean = 0.0
        self.variance = 0.0

    def step(self, closure: Closure) -> Tensor:
        """One step of Algorithm 1."""
        loss, g = self.gradient(closure)
        square = float(norm(g)) ** 2
        delta = self.at_this_step(self.decay)
        self.mean = delta * self.mean + (1 - delta) * square
        self.variance = delta * self.variance + (1 - delta) * (square - self.mean) ** 2
        if square < self.mean + self.at_this_step(self.threshold) * math.sqrt(self.variance):
            self.base_step(g)
            return loss

        eps = scaled(self.at_this_step(self.rho) / norm(g), g) if norm(g) > 0 else scaled(0.0, g)
        _, g_hat = self.gradient_at(eps, closure)
        self.base_step(g_hat)
        return loss
