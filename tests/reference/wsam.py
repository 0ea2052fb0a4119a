"""WSAM (Yue, Jiang, Ye, Gao, Liu, Zhang, KDD 2023)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, norm, plus, scaled


class WSAMReference(Reference):
    """SAM's ``eps``; the sharpness ``L(w + eps) - L(w)`` has the weight ``a = gamma / (1 - gamma)``.

    - coupled: the base steps with ``a g_hat + (1 - a) g``;
    - decoupled: the base steps with ``g``, then ``w`` becomes ``w - lr a (g_hat - g)``.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        base: torch.optim.Optimizer,
        *,
        rho: Scalar = 0.05,
        gamma: Scalar = 0.9,
        decoupled: bool = True,
    ) -> None:
        super().__init__(parameters, base)
        self.rho = rho
        self.gamma = gamma
        self.decoupled = decoupled

    def step(self, closure: Closure) -> Tensor:
        """One step of Algorithm 1."""
        loss, g = self.gradient(closure)
        rho = self.at_this_step(self.rho)
        gamma = self.at_this_step(self.gamma)
        a = gamma / (1.0 - gamma)

        g_norm = norm(g)
        eps = scaled(rho / g_norm, g) if g_norm > 0 else scaled(0.0, g)
        _, g_hat = self.gradient_at(eps, closure)
        if not self.decoupled:
            self.base_step(plus(scaled(a, g_hat), scaled(1.0 - a, g)))
            return loss

        sharpness = plus(g_hat, scaled(-1.0, g))
        self.base_step(g)
        rates = {id(p): group["lr"] for group in self.base.param_groups for p in group["params"]}
        with torch.no_grad():
            for w, s in zip(self.parameters, sharpness, strict=True):
                if s is not None:
                    w.sub_(rates[id(w)] * a * s)
        return loss
