"""Eigenvalues against dense matrices and known spectra."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lesam.flatness import HessianOperator, top_eigenvalues

from .problems import PROBLEMS, Problem, mlp, quadratic


def operator_of(problem: Problem, **options) -> HessianOperator:
    return HessianOperator(problem.model, problem.loss_fn, problem.data, **options)


def true_residuals(matrix: Tensor, vectors: Tensor, values: Tensor) -> Tensor:
    return (vectors @ matrix - values[:, None] * vectors).norm(dim=1)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("k", [1, 8])
def test_lanczos_equals_the_dense_spectrum(name: str, k: int) -> None:
    problem = PROBLEMS[name]()
    dense = problem.dense()
    found = top_eigenvalues(operator_of(problem), k, tolerance=1e-7, eigenvectors=True)
    torch.testing.assert_close(found.values, torch.linalg.eigvalsh(dense).flip(0)[:k], rtol=1e-9, atol=1e-10)
    assert found.converged.all()
    assert found.complete
    torch.testing.assert_close(found.vectors @ found.vectors.T, torch.eye(k).double(), rtol=0, atol=1e-9)
    exact = true_residuals(dense, found.vectors, found.values)
    assert (exact <= found.residuals + 1e-10).all()
    assert (found.residuals <= 2 * exact + 1e-9).all()  # honest in both directions


def test_whole_spectrum() -> None:
    problem = mlp()
    found = top_eigenvalues(operator_of(problem), 51)
    torch.testing.assert_close(found.values, torch.linalg.eigvalsh(problem.dense()).flip(0), rtol=1e-8, atol=1e-10)
    assert found.complete


@pytest.mark.parametrize("method", ["lanczos", "power"])
def test_largest_means_algebraically_largest(method) -> None:
    """The largest magnitude is negative here; it is not among the answers."""
    spectrum = [-9.0, 4.0, 2.0, 1.0, 0.5, -0.25, 0.125]
    found = top_eigenvalues(
        operator_of(quadratic(spectrum)), 3, method, tolerance=1e-6, max_iterations=400, eigenvectors=True
    )
    torch.testing.assert_close(found.values, torch.tensor([4.0, 2.0, 1.0]).double(), rtol=1e-9, atol=1e-9)
    assert found.converged.all()


def test_negative_values_come_last_when_there_is_nothing_else() -> None:
    found = top_eigenvalues(operator_of(quadratic([-1.0, -2.0, 3.0])), 3)
    torch.testing.assert_close(found.values, torch.tensor([3.0, -1.0, -2.0]).double())


def test_repeated_eigenvalues_are_all_found() -> None:
    """Linear regression with three outputs: the Hessian is I (x) 2/(3n) X'X, each eigenvalue three times."""
    torch.manual_seed(0)
    model = nn.Linear(20, 3, bias=False).double()
    x, y = torch.randn(40, 20).double(), torch.randn(40, 3).double()
    operator = HessianOperator(model, F.mse_loss, [(x, y)])
    expected = torch.linalg.eigvalsh(2 / (3 * 40) * x.T @ x).flip(0).repeat_interleave(3)
    for k in (1, 4, 9, 60):
        found = top_eigenvalues(operator, k, tolerance=1e-6)
        torch.testing.assert_close(found.values, expected[:k], rtol=1e-8, atol=1e-10)
        assert found.complete
    assert not top_eigenvalues(operator, 4, confirm=False).complete


def test_a_zero_hessian() -> None:
    found = top_eigenvalues(operator_of(quadratic([0.0] * 5)), 3)
    assert found.values.tolist() == [0.0, 0.0, 0.0]
    assert found.converged.all()


def test_what_has_not_converged_says_so() -> None:
    problem = quadratic([1 + i / 100 for i in range(60)])
    for method, most in (("lanczos", 8), ("power", 3)):
        found = top_eigenvalues(operator_of(problem), 5, method, max_iterations=most, eigenvectors=True)
        assert not found.converged.all()
        assert not found.complete
        assert "not converged" in str(found)
        exact = true_residuals(problem.dense(), found.vectors, found.values)
        assert (exact <= found.residuals * 1.01).all()
        assert (found.residuals <= 6 * exact).all()


def test_power_iteration_agrees_with_lanczos() -> None:
    problem = quadratic([1000 * 0.7**i for i in range(20)])
    found = top_eigenvalues(operator_of(problem), 9, "power", tolerance=1e-4, eigenvectors=True)
    lanczos = top_eigenvalues(operator_of(problem), 9, tolerance=1e-4)
    torch.testing.assert_close(found.values, lanczos.values, rtol=1e-6, atol=0)
    assert found.converged.all()
    assert found.products > 3 * lanczos.products
    exact = true_residuals(problem.dense(), found.vectors, found.values)
    assert (exact <= found.residuals * 1.01 + 1e-9).all()


def test_single_precision_residuals_are_true() -> None:
    problem = mlp()
    dense = problem.dense()
    single = Problem(problem.model.float(), problem.loss_fn, problem.inputs.float(), problem.targets, problem.sizes)
    found = top_eigenvalues(operator_of(single), 6, eigenvectors=True)
    torch.testing.assert_close(found.values, torch.linalg.eigvalsh(dense).flip(0)[:6], rtol=1e-4, atol=1e-6)
    exact = true_residuals(dense, found.vectors.double(), found.values)
    assert (exact <= 1e-3 * found.values.abs() + 1e-6).all()


def test_the_noise_of_the_products_enters_the_residuals() -> None:
    """Differences over a step of 0.3 are not the Hessian's products and not symmetric; that is reported."""
    problem = mlp()
    rough = operator_of(problem, product="finite_difference", step=0.3)
    matrix = rough.to_dense()
    asymmetry = float((matrix - matrix.T).norm() / matrix.norm())
    found = top_eigenvalues(rough, 5, tolerance=1e-9, max_iterations=60, confirm=False)
    assert asymmetry > 1e-6
    assert not found.converged.all()


@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_the_basis_may_live_elsewhere(where: str, tmp_path: Path) -> None:
    problem = mlp()
    storage = tmp_path / "basis" if where == "disk" else "cpu"
    seen = []

    def progress(done: int, most: int | None) -> None:
        seen.append(sum(f.stat().st_size for f in tmp_path.rglob("rows-*")))

    found = top_eigenvalues(operator_of(problem), 5, storage=storage, eigenvectors=True, progress=progress)
    inside = top_eigenvalues(operator_of(problem), 5, eigenvectors=True)
    assert torch.equal(found.values, inside.values)
    assert torch.equal(found.vectors, inside.vectors)
    assert (max(seen) > 0) == (where == "disk")
    assert not list(tmp_path.rglob("rows-*"))


def test_equal_seeds_give_equal_bits() -> None:
    problem = mlp()
    first = top_eigenvalues(operator_of(problem), 4, seed=3)
    torch.randn(100)
    second = top_eigenvalues(operator_of(problem), 4, seed=3)
    assert torch.equal(first.values, second.values)
    assert not torch.equal(first.values, top_eigenvalues(operator_of(problem), 4, seed=4).values)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "0"),
        ({"k": 52}, "52"),
        ({"k": 1, "method": "qr"}, "'qr'"),
        ({"k": 1, "tolerance": 0.0}, "0.0"),
        ({"k": 5, "max_iterations": 4}, "k = 5"),
        ({"k": 1, "storage": "disk"}, "pathlib"),
        ({"k": 1, "seed": -1}, "-1"),
    ],
)
def test_options_of_the_wrong_form(options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        top_eigenvalues(operator_of(mlp()), **options)
