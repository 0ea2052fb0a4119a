"""ESAM (Du, Yan, Feng, Zhou, Zhen, Goh, Tan, ICLR 2022)."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from .long_hand import Closure, Reference, Scalar, norm, scaled

SampleLosses = Callable[..., Tensor]


class ESAMReference(Reference):
    """Perturb a random subset of the tensors, descend on the samples whose loss rose most.

    ``eps = (rho / beta) g_S / |g_S|`` where ``g_S`` is the gradient of the tensors for which ``mask(t)`` is
    true. The second pass is the mean over the ``ceil(gamma B)`` samples of largest ``l_i(w + eps) - l_i(w)``,
    ties going to the lower index, and its gradient is taken for every parameter.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        base: torch.optim.Optimizer,
        *,
        mask: Callable[[int], list[bool]],
        rho: Scalar = 0.05,
        beta: Scalar = 0.6,
        gamma: Scalar = 0.5,
    ) -> None:
        super().__init__(parameters, base)
        self.mask = mask
        self.rho = rho
        self.beta = beta
        self.gamma = gamma

    def step(self, closure: Closure | None = None, *, sample_losses: SampleLosses | None = None) -> Tensor:
        """One step on ``sample_losses(indices=None)``, or on a plain closure when ``gamma`` is 1."""
        rho = self.at_this_step(self.rho)
        beta = self.at_this_step(self.beta)
        gamma = self.at_this_step(self.gamma)
        perturbed = self.mask(self.t)

        if sample_losses is not None:
            all_samples, sharpest_samples = self.two_passes(sample_losses, gamma)
        elif closure is not None and gamma == 1:
            all_samples = sharpest_samples = closure
        else:
            raise ValueError(f"gamma={gamma} selects samples: step(sample_losses=...) is needed")

        loss, g = self.gradient(all_samples)
        g_S = [g_i if chosen else None for g_i, chosen in zip(g, perturbed, strict=True)]
        g_S_norm = norm(g_S)
        eps = scaled(rho / (beta * g_S_norm), g_S) if g_S_norm > 0 else scaled(0.0, g_S)
        _, g_hat = self.gradient_at(eps, sharpest_samples)
        self.base_step(g_hat)
        return loss

    def two_passes(self, sample_losses: SampleLosses, gamma: float) -> tuple[Closure, Closure]:
        """The closure of the first pass, over all samples, and of the second, over those that rose most."""
        before: list[Tensor] = []

        def all_samples() -> Tensor:
            self.base.zero_grad()
            losses = sample_losses()
            before.append(losses.detach().clone())
            loss = losses.mean()
            loss.backward()
            return loss

        def sharpest_samples() -> Tensor:
            with torch.no_grad():
                rise = (sample_losses() - before[0]).tolist()
            ranked = sorted(range(len(rise)), key=lambda i: (-rise[i], i))
            # The decimal the user wrote: 0.1 of 30 samples is 3, though 0.1 * 30 > 3 in binary.
            kept = sorted(ranked[: math.ceil(Fraction(str(gamma)) * len(rise))])
            self.base.zero_grad()
            loss = sample_losses(indices=torch.tensor(kept)).mean()
            loss.backward()
            return loss

        return all_samples, sharpest_samples
