"""Agreement with other libraries, on problems where they agree with the dense Hessian."""

from __future__ import annotations

import pytest
import torch

from lesam.flatness import HessianOperator, top_eigenvalues, trace

from .problems import PROBLEMS, mlp, transformer


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.filterwarnings("ignore")
def test_curvlinops(name: str) -> None:
    curvlinops = pytest.importorskip("curvlinops")
    problem = PROBLEMS[name]()
    v = torch.randn(problem.dense().shape[0]).double()
    ours = HessianOperator(problem.model, problem.loss_fn, problem.data) @ v
    problem.model.eval()
    theirs = curvlinops.HessianLinearOperator(
        problem.model, torch.nn.CrossEntropyLoss(), list(problem.model.parameters()), problem.data
    )
    torch.testing.assert_close(ours, theirs @ v, rtol=1e-9, atol=1e-11)


@pytest.mark.filterwarnings("ignore")
def test_pyhessian() -> None:
    pyhessian = pytest.importorskip("pyhessian")
    problem = mlp()
    operator = HessianOperator(problem.model, problem.loss_fn, (problem.inputs, problem.targets))
    found = top_eigenvalues(operator, 2)
    torch.manual_seed(0)
    theirs = pyhessian.hessian(
        problem.model.eval(), problem.loss_fn, data=(problem.inputs, problem.targets), cuda=False
    )
    values, _ = theirs.eigenvalues(maxIter=400, tol=1e-9, top_n=2)
    torch.testing.assert_close(found.values, torch.tensor(values).double(), rtol=1e-4, atol=0)
    draws = torch.tensor(theirs.trace(maxIter=300, tol=0.0)).double()
    estimate = trace(operator, samples=300)
    error = (estimate.stderr**2 + float(draws.var()) / len(draws)) ** 0.5
    assert abs(estimate.estimate - float(draws.mean())) <= 4 * error


def test_layer_norm_is_right_where_forward_mode_may_not_be() -> None:
    """Central differences of gradients decide, independently of any second derivative."""
    problem = transformer()
    v = torch.randn(problem.dense().shape[0]).double()
    exact = HessianOperator(problem.model, problem.loss_fn, problem.data) @ v
    differences = HessianOperator(problem.model, problem.loss_fn, problem.data, product="finite_difference", step=1e-4)
    assert float((exact - differences @ v).norm() / exact.norm()) < 1e-6
