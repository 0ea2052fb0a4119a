"""ASAM (Kwon, Kim, Park, Choi, ICML 2021)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, Vector


class ASAMReference(Reference):
    """``eps = rho T^2 g / |T g|``, with ``T = |w| + eta`` on weights and 1 on biases and norm layers."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        base: torch.optim.Optimizer,
        *,
        rho: Scalar = 0.5,
        eta: Scalar = 0.01,
    ) -> None:
        super().__init__(parameters, base)
        self.rho = rho
        self.eta = eta

    def step(self, closure: Closure) -> Tensor:
        """One step; a tensor with more than one dimension is what counts as a weight."""
        loss, g = self.gradient(closure)
        rho = self.at_this_step(self.rho)
        eta = self.at_this_step(self.eta)

        operators = []  # T, tensor by tensor
        for w in self.parameters:
            operators.append(w.detach().abs() + eta if w.ndim > 1 else torch.ones_like(w))

        squared = 0.0  # |T g|^2
        for T, g_i in zip(operators, g, strict=True):
            if g_i is not None:
                squared += float(((T * g_i) ** 2).sum())

        eps: Vector = []
        for T, g_i in zip(operators, g, strict=True):
            if g_i is None or squared == 0:
                eps.append(None)
            else:
                eps.append(rho * T * T * g_i / math.sqrt(squared))

        _, g_hat = self.gradient_at(eps, closure)
        self.base_step(g_hat)
        return loss
