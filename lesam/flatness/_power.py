"""Deflated power iteration, the method most published Hessian spectra were measured with."""

from __future__ import annotations

import torch
from torch import Tensor

from lesam.flatness._basis import Basis
from lesam.flatness._operator import SymmetricOperator
from lesam.flatness._random import normal
from lesam.flatness._results import Progress


def deflated_power(
    operator: SymmetricOperator,
    k: int,
    tolerance: float,
    max_iterations: int,
    seed: int,
    locked: Basis,
    progress: Progress | None,
) -> tuple[Tensor, Tensor, int]:
    """Fill `locked` with eigenvectors until `k` of them have non-negative values, or the space is used up.

    For each: `v <- Hv / |Hv|` with the found vectors projected out, until `|Hv - lambda v| <= tolerance |lambda|`
    there, with the Rayleigh quotient `lambda = v'Hv`. Power iteration finds the largest magnitude first, so negative
    values can come up; they are deflated and do not count towards `k`.

    Returns:
        Values, bounds on the residuals, and the number of products; one for each vector of `locked`.
    """
    if max_iterations < 1:
        raise ValueError(f"max_iterations must be at least 1, got {max_iterations}")
    like = torch.empty(0, dtype=operator.dtype, device=operator.device)
    zero = torch.finfo(operator.dtype).eps ** (2 / 3)
    values: list[float] = []
    residuals: list[float] = []
    couplings: list[Tensor] = []
    products = 0
    while sum(value >= 0 for value in values) < k and len(values) < operator.size:
        v, _ = locked.project_out(normal(operator.size, seed, len(values), like))
        v = v / v.norm()
        value, residual, coupling = 0.0, torch.inf, torch.empty(0)
        for iteration in range(1, max_iterations + 1):
            w = operator.matvec(v)
            products += 1
            if progress is not None:
                progress(products, None)
            value = float(v.double() @ w.double())
            w, coupling = locked.project_out(w)
            length, residual = float(w.norm()), float((w - value * v).norm())
            scale = max(abs(value), zero * max(map(abs, values), default=0.0))
            # Stop before moving on: value and residual belong to `v`.
            if residual <= tolerance * scale or length == 0.0 or iteration == max_iterations:
                break
            v = w / length
        locked.append(v)
        values.append(value)
        residuals.append(residual)
        couplings.append(coupling)
    eps = torch.finfo(operator.dtype).eps
    return *_rotated(values, residuals, couplings, locked, eps), products


def _rotated(
    values: list[float], residuals: list[float], couplings: list[Tensor], locked: Basis, eps: float
) -> tuple[Tensor, Tensor]:
    """Rayleigh-Ritz in the space of the found vectors.

    An early vector's error, small next to its own eigenvalue, can be large next to a later one. It shows as the
    coupling `v_i' H v_j` met while deflating, and diagonalising these couplings removes it.
    """
    projected = torch.diag(torch.tensor(values, dtype=torch.float64))
    for j, coupling in enumerate(couplings):
        projected[:j, j] = projected[j, :j] = coupling
    # What of each residual lies outside the space: its part along later vectors is in the couplings. The
    # difference of the two is known no better than to the rounding of the larger.
    squares = torch.tensor(residuals, dtype=torch.float64).square()
    outside = (squares - projected.tril(-1).square().sum(dim=0)).maximum(16 * eps * squares).sqrt()
    rotated, s = torch.linalg.eigh(projected)
    locked.rotate(s.T)
    return rotated, outside @ s.abs()
