"""EMA-SAM: a perturbation away from a running average of the weights."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, Vector, norm, scaled


class EMASAMReference(Reference):
    """One pass at ``w + rho u / |u|`` with ``u = w - v``, ``v`` the average of the weights of earlier steps.

    A tensor seen for the first time has no average: it is not moved, then ``v = w``.
    """

    def __init__(
        self, parameters: Sequence[Tensor], base: torch.optim.Optimizer, *, rho: Scalar = 0.05, decay: Scalar = 0.999
    ) -> None:
        super().__init__(parameters, base)
        self.rho = rho
        self.decay = decay
        self.v: Vector = [None for _ in self.parameters]

    def step(self, closure: Closure) -> Tensor:
        """One step; the loss is that of the only pass."""
        rho = self.at_this_step(self.rho)
        decay = self.at_this_step(self.decay)

        u = [None if v is None else w.detach() - v for w, v in zip(self.parameters, self.v, strict=True)]
        u_norm = norm(u)
        eps = scaled(rho / u_norm, u) if u_norm > 0 else scaled(0.0, u)
        loss, g_hat = self.gradient_at(eps, closure)

        for i, w in enumerate(self.parameters):
            v_i = self.v[i]
            if g_hat[i] is not None:
                self.v[i] = w.detach().clone() if v_i is None else decay * v_i + (1.0 - decay) * w.detach()
        self.base_step(g_hat)
        return loss
