"""Eigen-SAM (Luo, Truong, Pham, Harandi, Phung, Le, NeurIPS 2024)."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, Vector, dot, norm, plus, scaled


class EigenSAMReference(Reference):
    """The perturbation leans from the gradient towards ``v``, the top eigenvector of the Hessian.

    With ``u = g / |g|`` and ``v_perp = v - <v, u> u``:

    - ``form="official"``: ``eps = rho (u + alpha sign(<g, v>) v_perp)``, not renormalised;
    - ``form="top"``: ``eps = rho sign(<g, v>) v``.

    ``v`` is refreshed before the first pass of steps ``t > 0`` with ``t % every == 0``, by ``iterations``
    power iterations on central differences of the gradient, warm-started; ``start()`` gives the vector the
    very first refresh begins with. Until then the step is SAM's.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        base: torch.optim.Optimizer,
        *,
        start: Callable[[], list[Tensor]],
        rho: Scalar = 0.1,
        alpha: Scalar = 0.2,
        every: int = 100,
        iterations: int = 5,
        form: str = "official",
        h: float | None = None,
    ) -> None:
        super().__init__(parameters, base)
        if form not in ("official", "top"):
            raise ValueError(f'form must be "official" or "top", got {form!r}')
        self.start = start
        self.rho = rho
        self.alpha = alpha
        self.every = every
        self.iterations = iterations
        self.form = form
        # eps^(1/3) balances a central difference's truncation error h^2 and its rounding error eps / h.
        self.h = torch.finfo(self.parameters[0].dtype).eps ** (1 / 3) if h is None else h
        self.v: Vector | None = None

    def refresh(self, closure: Closure) -> None:
        """Power iteration: ``v <- H v / |H v|`` with ``H v = (grad(w + h v) - grad(w - h v)) / (2 h)``."""
        v: Vector = list(self.start()) if self.v is None else self.v
        v = scaled(1.0 / norm(v), v)
        for _ in range(self.iterations):
            _, ahead = self.gradient_at(scaled(self.h, v), closure)
            _, behind = self.gradient_at(scaled(-self.h, v), closure)
            Hv = scaled(1.0 / (2.0 * self.h), plus(ahead, scaled(-1.0, behind)))
            if norm(Hv) > 0:
                v = scaled(1.0 / norm(Hv), Hv)
        self.v = v

    def step(self, closure: Closure) -> Tensor:
        """One step, with the refresh first when it is due."""
        if self.t > 0 and self.t % self.every == 0:
            self.refresh(closure)

        loss, g = self.gradient(closure)
        rho = self.at_this_step(self.rho)
        alpha = self.at_this_step(self.alpha)

        if norm(g) == 0:
            eps = scaled(0.0, g)
        elif self.v is None:
            eps = scaled(rho / norm(g), g)
        else:
            u = scaled(1.0 / norm(g), g)
            g_dot_v = dot(g, self.v)
            sign = math.copysign(1.0, g_dot_v) if g_dot_v != 0 else 0.0
            if self.form == "top":
                eps = scaled(rho * sign, self.v)
            else:
                v_perp = plus(self.v, scaled(-dot(self.v, u), u))
                eps = scaled(rho, plus(u, scaled(alpha * sign, v_perp)))

        _, g_hat = self.gradient_at(eps, closure)
        self.base_step(g_hat)
        return loss
