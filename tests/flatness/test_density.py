"""Stochastic Lanczos quadrature against exact moments."""

from __future__ import annotations

import pytest
import torch

from lesam.flatness import HessianOperator, spectral_density

from .problems import mlp, quadratic


def operator_of(problem) -> HessianOperator:
    return HessianOperator(problem.model, problem.loss_fn, problem.data)


def test_gauss_quadrature_is_exact_up_to_its_degree() -> None:
    """m nodes integrate x^p exactly for p <= 2m - 1: sum_i w_i theta_i^p = v'H^p v for the draw's unit vector."""
    problem = mlp()
    dense = problem.dense()
    steps = 4
    found = spectral_density(operator_of(problem), draws=1, steps=steps, seed=9)
    from lesam.flatness._random import rademacher

    v = rademacher(51, 9, 0, dense[0]) / 51**0.5
    moments, w = [], v.clone()
    for _ in range(2 * steps + 3):
        moments.append(float(v @ w))
        w = dense @ w
    for power in range(2 * steps):
        assert found.moment(power)[0] == pytest.approx(moments[power], rel=1e-9, abs=1e-12)
    assert found.moment(2 * steps + 2)[0] != pytest.approx(moments[2 * steps + 2], rel=1e-9)


def test_moments_estimate_traces_of_powers() -> None:
    problem = mlp()
    dense = problem.dense()
    found = spectral_density(operator_of(problem), draws=40, steps=10)
    for power, matrix in ((1, dense), (2, dense @ dense), (3, dense @ dense @ dense)):
        mean, spread = found.moment(power)
        assert abs(mean - float(matrix.trace()) / 51) <= 4 * spread


def test_the_density_integrates_to_one_and_peaks_at_the_bulk() -> None:
    problem = quadratic([5.0] + [1.0] * 9)
    found = spectral_density(operator_of(problem), draws=60, steps=8, width=0.1)
    assert float(torch.trapezoid(found.density, found.grid)) == pytest.approx(1.0, abs=1e-3)
    upper = found.grid > 3
    assert float(torch.trapezoid(found.density[upper], found.grid[upper])) == pytest.approx(0.1, abs=0.05)
    assert float(found.grid[found.density.argmax()]) == pytest.approx(1.0, abs=0.02)


def test_a_run_that_ends_early_keeps_its_weight() -> None:
    found = spectral_density(operator_of(quadratic([2.0, 1.0, 1.0])), draws=3, steps=9)
    torch.testing.assert_close(found.weights.sum(dim=1), torch.ones(3).double())


@pytest.mark.parametrize("options", [{"draws": 0}, {"steps": 0}, {"points": 1}, {"width": 0.0}])
def test_options_of_the_wrong_form(options) -> None:
    with pytest.raises(ValueError, match=r"at least|positive"):
        spectral_density(operator_of(mlp()), **options)
