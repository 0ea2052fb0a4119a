"""The density of the whole Hessian spectrum by stochastic Lanczos quadrature."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lesam.flatness._basis import Storage
from lesam.flatness._lanczos import Krylov
from lesam.flatness._operator import SymmetricOperator
from lesam.flatness._random import rademacher
from lesam.flatness._results import Measurement, Progress


@dataclass(frozen=True, eq=False, kw_only=True)
class SpectralDensity(Measurement):
    """Quadrature nodes and weights, and the smoothed density drawn from them.

    Attributes:
        nodes: `(draws, steps)`; a run that ended early is padded with weight zero.
        weights: `(draws, steps)`; each row sums to one.
        grid: Points at which the density is given.
        density: Its values; integrates to one.
        width: Standard deviation of the Gaussian that smooths it.
    """

    nodes: Tensor
    weights: Tensor
    grid: Tensor
    density: Tensor
    width: float

    def moment(self, power: int) -> tuple[float, float]:
        """Estimate of `tr(H^power) / size` and its standard error (nan for one draw)."""
        terms = (self.weights * self.nodes**power).sum(dim=1)
        spread = float(terms.std()) / math.sqrt(len(terms)) if len(terms) > 1 else math.nan
        return float(terms.mean()), spread

    def lines(self) -> list[str]:
        low, high = float(self.nodes.min()), float(self.nodes.max())
        near = float((self.weights * (self.nodes.abs() <= 0.01 * max(abs(low), abs(high)))).sum() / len(self.weights))
        draws, steps = self.nodes.shape
        return [
            f"Hessian spectral density on [{low:.4g}, {high:.4g}], {draws} draws of {steps} steps",
            f"  {100 * near:.1f} % of eigenvalues within 1 % of the largest around zero",
        ]


def spectral_density(
    operator: SymmetricOperator,
    draws: int = 4,
    steps: int = 80,
    *,
    points: int = 1024,
    width: float | None = None,
    seed: int = 0,
    storage: Storage = "device",
    progress: Progress | None = None,
) -> SpectralDensity:
    r"""Estimate the eigenvalue density `sum_i delta(x - lambda_i) / n`.

    Each draw runs Lanczos from a random unit vector `v`; the eigenvalues of the projected matrix are nodes, the squared
    first components of its eigenvectors weights of a Gauss quadrature that integrates polynomials up to degree
    `2 steps - 1` exactly against the spectral measure of `v`. The mean over `v` of that measure is the density.

    Args:
        operator: The Hessian.
        draws: Random vectors.
        steps: Products for each.
        points: Size of the grid the smoothed density is given on.
        width: Standard deviation of the smoothing Gaussian; default the range of the nodes / `steps`.
        seed: Of the vectors.
        storage: Where the basis lives, as in `top_eigenvalues`.
        progress: Called as `progress(products, draws * steps)`.

    Example:
        >>> import torch
        >>> from lesam.flatness import HessianOperator, spectral_density
        >>> x = torch.eye(4, dtype=torch.float64)
        >>> model = torch.nn.Linear(4, 1, bias=False, dtype=torch.float64)
        >>> operator = HessianOperator(model, torch.nn.functional.mse_loss, [(x, x[:, :1])])
        >>> mean, _ = spectral_density(operator, draws=2, steps=3).moment(1)     # H = identity / 2
        >>> round(mean, 6)
        0.5

    References:
        Lin, Saad, Yang, "Approximating spectral densities of large matrices", SIAM Review 58(1), 2016.
        Ghorbani, Krishnan, Xiao, "An investigation into neural net optimization via Hessian eigenvalue density", 2019.
    """
    if draws < 1 or steps < 1 or points < 2:
        raise ValueError(f"draws and steps must be at least 1 and points 2, got {draws}, {steps}, {points}")
    if width is not None and width <= 0:
        raise ValueError(f"width must be positive, got {width}")
    like = torch.empty(0, dtype=operator.dtype, device=operator.device)
    nodes = torch.zeros(draws, steps, dtype=torch.float64)
    weights = torch.zeros(draws, steps, dtype=torch.float64)
    for draw in range(draws):
        run = Krylov(operator, storage)
        run.begin(rademacher(operator.size, seed, draw, like))
        try:
            while run.steps < steps and run.extensible:
                run.step()
                if progress is not None:
                    progress(draw * steps + run.steps, draws * steps)
            ritz = run.ritz()
        finally:
            run.basis.close()
        nodes[draw, : run.steps] = ritz.values
        weights[draw, : run.steps] = ritz.coordinates[0].square()
        nodes[draw, run.steps :] = ritz.values[0]
    spread = float(nodes.max() - nodes.min()) or max(1.0, float(nodes.abs().max()))
    smooth = spread / steps if width is None else width
    grid = torch.linspace(float(nodes.min()) - 5 * smooth, float(nodes.max()) + 5 * smooth, points, dtype=torch.float64)
    return SpectralDensity(
        settings=operator.settings | {"draws": draws, "steps": steps, "seed": seed},
        nodes=nodes,
        weights=weights,
        grid=grid,
        density=_smoothed(nodes, weights, grid, smooth),
        width=smooth,
    )


def _smoothed(nodes: Tensor, weights: Tensor, grid: Tensor, width: float) -> Tensor:
    centred = (grid[:, None] - nodes.reshape(1, -1)) / width
    bells = torch.exp(-centred.square() / 2) / (width * math.sqrt(2 * math.pi))
    return bells @ weights.reshape(-1) / len(nodes)
