"""LE-SAM+ (Wang, Liu, Xie, Gao, ICML 2026)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, norm, plus, scaled


class LESAMPlusReference(Reference):
    """LE-SAM's perturbation, the excess loss weighted by ``alpha``.

    The objective is ``L(w + eps) + alpha (L(w + eps) - L(w))`` with ``eps`` held constant:

    - ``form="paper"``: its gradient, ``(1 + alpha) g_hat - alpha g``;
    - ``form="reference"``: what the authors' code computes, ``g_hat - alpha g``.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        base: torch.optim.Optimizer,
        *,
        sigma: Scalar = 0.15,
        alpha: Scalar = 0.5,
        rho_max: Scalar | None = 0.4,
        varrho: Scalar = 1e-12,
        form: str = "paper",
    ) -> None:
        super().__init__(parameters, base)
        if form not in ("paper", "reference"):
            raise ValueError(f'form must be "paper" or "reference", got {form!r}')
        self.sigma = sigma
        self.alpha = alpha
        self.rho_max = rho_max
        self.varrho = varrho
        self.form = form

    def step(self, closure: Closure) -> Tensor:
        """One step: LE-SAM's two passes, then the weighted difference."""
        loss, g = self.gradient(closure)
        g_norm = norm(g)

        if g_norm == 0:
            eps = scaled(0.0, g)
        else:
            sigma_t = self.at_this_step(self.sigma)
            rho_t = sigma_t / (g_norm + self.at_this_step(self.varrho))
            if self.rho_max is not None:
                rho_t = min(rho_t, self.at_this_step(self.rho_max))
            eps = scaled(rho_t / g_norm, g)

        _, g_hat = self.gradient_at(eps, closure)
        alpha = self.at_this_step(self.alpha)
        coefficient = 1.0 + alpha if self.form == "paper" else 1.0
        self.base_step(plus(scaled(coefficient, g_hat), scaled(-alpha, g)))
        return loss
