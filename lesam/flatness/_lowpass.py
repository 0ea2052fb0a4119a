"""The low-pass filter measure: the mean loss under Gaussian noise on the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lesam.flatness._checks import refuse_non_finite
from lesam.flatness._objective import LossFunction, Objective, Selection
from lesam.flatness._random import normal
from lesam.flatness._results import Measurement, Progress
from lesam.flatness._untouched import Mode


@dataclass(frozen=True, eq=False, kw_only=True)
class LowPass(Measurement):
    """Mean loss under weight noise; lower is flatter.

    Attributes:
        estimate: Mean of `losses`.
        stderr: Standard error of that mean over the noise.
        loss: The loss without noise.
        losses: Loss under each draw of noise.
    """

    estimate: float
    stderr: float
    loss: float
    losses: Tensor

    @property
    def excess(self) -> float:
        """`estimate - loss`: what the noise adds, the part that speaks of flatness."""
        return self.estimate - self.loss

    def minus(self, other: LowPass) -> tuple[float, float]:
        """Difference of two estimates under the same noise, and its standard error from the paired draws.

        Two epochs or two optimizers measured with equal seeds share their noise, so the difference is known much
        better than the values.
        """
        for name in ("sigma", "draws", "seed", "parameters"):
            if self.settings[name] != other.settings[name]:
                raise ValueError(
                    f"the noise is not common: {name} is {self.settings[name]} here and {other.settings[name]} there"
                )
        pairs = self.losses - other.losses
        return float(pairs.mean()), float(pairs.std()) / math.sqrt(len(pairs))

    def lines(self) -> list[str]:
        return [
            f"low-pass filter {self.estimate:.6g} +- {self.stderr:.2g} (sigma {self.settings['sigma']}, "
            f"{len(self.losses)} draws), loss {self.loss:.6g}, excess {self.excess:.3g}"
        ]


def low_pass_filter(
    model: nn.Module,
    loss_fn: LossFunction,
    data: Iterable[Any],
    sigma: float = 0.01,
    samples: int = 100,
    seed: int = 0,
    *,
    params: Selection = None,
    mode: Mode = "eval",
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> LowPass:
    r"""Estimate :math:`(L * K)(w) = E_\tau L(w + \tau)` with :math:`\tau \sim N(0, \sigma^2 I)`.

    The noise is added to every selected parameter, BatchNorm's included. Draw `i` depends on `seed` and `i` alone:
    models of one architecture, and epochs of one run, see the same noise (common random numbers).

    Args:
        model: Left as it was.
        loss_fn: `loss_fn(output, target)`, the mean over a batch.
        data: Iterable of `(input, target)`, the same in each pass.
        sigma: Standard deviation of the noise.
        samples: Draws of noise, each one pass over the data; at least 2.
        seed: Of the noise.
        params: Which parameters get noise; default all that require a gradient.
        mode: As in `HessianOperator`.
        batch_size: Splits larger batches.
        progress: Called as `progress(draws, samples)`.

    Example:
        >>> import torch
        >>> from lesam.flatness import low_pass_filter
        >>> x = torch.ones(8, 1)
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> found = low_pass_filter(model, torch.nn.functional.mse_loss, [(x, model(x).detach())], sigma=0.1)
        >>> abs(found.excess - 0.01) < 4 * found.stderr      # (w + tau - w)^2 has mean sigma^2
        True

    References:
        Bisla, Wang, Choromanska, "Low-pass filtering SGD for recovering flat optima in the deep learning
        optimization landscape", AISTATS 2022.
    """
    if sigma <= 0:
        raise ValueError(f"sigma must be positive, got {sigma}")
    if samples < 2:
        raise ValueError(f"samples must be at least 2 for a standard error, got {samples}")
    objective = Objective(model, loss_fn, data, params=params, mode=mode, batch_size=batch_size)
    point = objective.point()
    like = torch.empty(0, dtype=objective.dtype, device=objective.device)
    losses = torch.empty(samples, dtype=torch.float64)
    for draw in range(samples):
        noise = objective.unflatten(normal(objective.size, seed, draw, like))
        moved = [torch.add(p, tau, alpha=sigma) for p, tau in zip(point, noise, strict=True)]
        loss, _ = objective.evaluate(moved)
        losses[draw] = refuse_non_finite(loss, f"under noise {draw} of standard deviation {sigma}")
        if progress is not None:
            progress(draw + 1, samples)
    return LowPass(
        settings=objective.settings | {"sigma": sigma, "draws": samples, "seed": seed},
        estimate=float(losses.mean()),
        stderr=float(losses.std()) / math.sqrt(samples),
        loss=objective.loss,
        losses=losses,
    )
