"""Trace estimates: unbiased, with the variance and the rate theory gives."""

from __future__ import annotations

import math

import pytest
import torch

from lesam.flatness import HessianOperator, trace

from .problems import PROBLEMS, mlp, quadratic


def operator_of(problem) -> HessianOperator:
    return HessianOperator(problem.model, problem.loss_fn, problem.data)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("method", ["hutchinson", "hutch++"])
def test_within_its_error_of_the_exact_trace(name: str, method) -> None:
    problem = PROBLEMS[name]()
    exact = float(problem.dense().trace())
    found = trace(operator_of(problem), samples=60, method=method)
    assert abs(found.estimate - exact) <= 4 * found.stderr
    assert found.settings["products"] == 60


def test_hutchinson_variance_is_the_formulas() -> None:
    """Var(z'Hz) = 2 (|H|_F^2 - sum H_ii^2) for random signs."""
    problem = mlp()
    dense = problem.dense()
    expected = 2 * float(dense.square().sum() - dense.diagonal().square().sum())
    draws = trace(operator_of(problem), samples=2000).draws
    # The sample variance of n draws has a relative standard error of sqrt((kurtosis - 1) / n).
    fourth = float(((draws - draws.mean()) ** 4).mean() / draws.var() ** 2)
    assert abs(float(draws.var()) / expected - 1) <= 4 * math.sqrt((fourth - 1) / 2000)


def test_standard_error_falls_with_the_root_of_the_samples() -> None:
    operator = operator_of(quadratic([10.0, 5.0, 1.0, 0.5, 0.1, -0.2]))
    few, many = trace(operator, samples=50), trace(operator, samples=3200)
    assert 6 < few.stderr / many.stderr < 10.7  # sqrt(64) = 8
    assert abs(many.estimate - 16.4) <= 4 * many.stderr


def test_hutchplusplus_is_exact_for_low_rank() -> None:
    problem = quadratic([8.0, -3.0, 1.0] + [0.0] * 17)
    found = trace(operator_of(problem), samples=12, method="hutch++")
    assert math.isclose(found.estimate, 6.0, rel_tol=1e-9)
    assert found.stderr < 1e-9
    assert abs(trace(operator_of(problem), samples=12).estimate - 6.0) > 1e-3


def test_hutchplusplus_beats_hutchinson_when_a_few_eigenvalues_dominate() -> None:
    operator = operator_of(quadratic([100.0 / (i + 1) ** 2 for i in range(60)]))
    assert trace(operator, 60, "hutch++").stderr < trace(operator, 60).stderr / 10


def test_hutchplusplus_on_the_whole_space_is_exact() -> None:
    found = trace(operator_of(quadratic([3.0, 2.0])), samples=9, method="hutch++")
    assert math.isclose(found.estimate, 5.0, rel_tol=1e-12)
    assert found.stderr == 0.0


def test_seeds_and_progress() -> None:
    operator = operator_of(mlp())
    seen: list[tuple[int, int | None]] = []
    first = trace(operator, samples=20, seed=1, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (20, 20)
    assert torch.equal(first.draws, trace(operator, samples=20, seed=1).draws)
    assert torch.equal(first.draws[:10], trace(operator, samples=10, seed=1).draws)  # draw i is draw i
    assert not torch.equal(first.draws, trace(operator, samples=20, seed=2).draws)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"samples": 1}, "1"), ({"samples": 5, "method": "hutch++"}, "5"), ({"method": "x"}, "'x'")],
)
def test_options_of_the_wrong_form(options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trace(operator_of(mlp()), **options)
