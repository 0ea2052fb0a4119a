"""Momentum-SAM (Becker, Altrock, Risse, arXiv 2401.12033, 2024)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, Vector, norm, scaled


class MSAMReference(Reference):
    """One pass at ``w - rho v / |v|``, ``v`` the base optimizer's own momentum.

    The sign is minus: torch's buffer points along the gradient and the step goes against it, so the pass is
    taken ahead of the coming step, as in Nesterov's method. ``v`` is SGD's ``momentum_buffer`` or Adam's
    ``exp_avg``; while there is none the weights are not moved.
    """

    def __init__(self, parameters: Sequence[Tensor], base: torch.optim.Optimizer, *, rho: Scalar = 3.0) -> None:
        super().__init__(parameters, base)
        self.rho = rho

    def step(self, closure: Closure) -> Tensor:
        """One step; the loss is that of the only pass."""
        rho = self.at_this_step(self.rho)

        v: Vector = []
        for w in self.parameters:
            state = self.base.state.get(w, {})
            v.append(state.get("momentum_buffer", state.get("exp_avg")))

        v_norm = norm(v)
        eps = scaled(-rho / v_norm, v) if v_norm > 0 else scaled(0.0, v)
        loss, g_hat = self.gradient_at(eps, closure)
        self.base_step(g_hat)
        return loss
