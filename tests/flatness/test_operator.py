"""Hessian products against the dense matrix."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, jvp

from lesam.flatness import HessianOperator

from .problems import PROBLEMS, cnn, dense_hessian, mlp, quadratic, transformer


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("keep_graphs", [0, 1, 2])
def test_products_equal_the_dense_hessian(name: str, keep_graphs: int) -> None:
    problem = PROBLEMS[name]()
    dense = problem.dense()
    operator = HessianOperator(problem.model, problem.loss_fn, problem.data, keep_graphs=keep_graphs)
    assert operator.shape == dense.shape
    v = torch.randn(operator.size, 3, dtype=torch.float64)
    for _ in range(2):  # a kept graph must survive its use
        torch.testing.assert_close(operator @ v[:, 0], dense @ v[:, 0], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(operator @ v, dense @ v, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(operator.to_dense(), dense, rtol=1e-9, atol=1e-11)


def test_splitting_batches_changes_nothing() -> None:
    problem = mlp()
    operator = HessianOperator(problem.model, problem.loss_fn, (problem.inputs, problem.targets), batch_size=3)
    assert operator.settings["batches"] == 4
    assert operator.settings["samples"] == 11
    torch.testing.assert_close(operator.to_dense(), problem.dense(), rtol=1e-9, atol=1e-11)


def test_train_mode_uses_the_statistics_of_each_batch() -> None:
    problem = cnn()
    problem.model.train()
    parts = [dense_hessian(problem.model, problem.loss_fn, x, y) * len(x) for x, y in problem.data]
    expected = sum(parts) / len(problem.inputs)
    problem = cnn()
    operator = HessianOperator(problem.model, problem.loss_fn, problem.data, mode="train")
    torch.testing.assert_close(operator.to_dense(), expected, rtol=1e-9, atol=1e-11)
    assert not torch.allclose(expected, problem.dense(), rtol=1e-3)


@pytest.mark.parametrize(
    "select",
    [
        lambda model: ["0.weight", "3.weight"],
        lambda model: [model[0].weight, model[3].weight],
        lambda model: lambda name, p: p.ndim > 1,
    ],
)
def test_params_selects_a_block(select) -> None:
    problem = mlp()
    operator = HessianOperator(problem.model, problem.loss_fn, problem.data, params=select(problem.model))
    keep = torch.cat([torch.full((p.numel(),), p.ndim > 1) for p in problem.model.parameters()])
    torch.testing.assert_close(operator.to_dense(), problem.dense()[keep][:, keep], rtol=1e-9, atol=1e-11)


def test_frozen_parameters_are_left_out_and_stay_frozen() -> None:
    problem = mlp()
    problem.model[0].requires_grad_(False)
    operator = HessianOperator(problem.model, problem.loss_fn, problem.data)
    torch.testing.assert_close(operator.to_dense(), problem.dense(), rtol=1e-9, atol=1e-11)
    assert [p.requires_grad for p in problem.model.parameters()] == [False, False, True, True]


def test_tied_weights_count_once() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    model[2].weight = model[0].weight
    x, y = torch.randn(5, 3).double(), torch.randn(5, 3).double()
    operator = HessianOperator(model, F.mse_loss, [(x, y)])
    assert operator.size == 15
    torch.testing.assert_close(operator.to_dense(), dense_hessian(model, F.mse_loss, x, y), rtol=1e-9, atol=1e-11)


def test_unused_and_linear_parameters_have_zero_rows() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Parameter(torch.ones(2).double())
            self.linear = nn.Parameter(torch.ones(1).double())
            self.unused = nn.Parameter(torch.ones(1).double())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.used.square()).sum(1) + self.linear

    x = torch.ones(4, 2).double()
    operator = HessianOperator(Partly(), lambda out, _: out.mean(), [(x, x)])
    torch.testing.assert_close(operator.to_dense(), torch.diag(torch.tensor([2.0, 2.0, 0.0, 0.0]).double()))
    torch.testing.assert_close(operator @ torch.ones(4).double(), torch.tensor([2.0, 2.0, 0.0, 0.0]).double())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")
def test_finite_differences_stay_within_their_bound() -> None:
    """|error| <= h^2/6 max |D^4 L[v, v, v, .]| + rounding / h along the segment, h = step for a unit vector."""
    problem = mlp()
    step = 1e-3
    operator = HessianOperator(problem.model, problem.loss_fn, problem.data, product="finite_difference", step=step)
    v = torch.randn(operator.size, dtype=torch.float64)
    v /= v.norm()
    shapes = [p.shape for p in problem.model.parameters()]
    names = [name for name, _ in problem.model.named_parameters()]
    start = torch.cat([p.detach().reshape(-1) for p in problem.model.parameters()])
    problem.model.eval()

    def loss(flat: torch.Tensor) -> torch.Tensor:
        pieces = flat.split([shape.numel() for shape in shapes])
        params = {n: piece.view(shape) for n, piece, shape in zip(names, pieces, shapes, strict=True)}
        return problem.loss_fn(functional_call(problem.model, params, (problem.inputs,)), problem.targets)

    def third(flat: torch.Tensor) -> torch.Tensor:
        derivative = grad(loss)
        for _ in range(3):
            derivative = (lambda inner: lambda w: jvp(inner, (w,), (v,))[1])(derivative)
        return derivative(flat)

    largest = max(float(third(start + t * v).norm()) for t in torch.linspace(-step, step, 9))
    rounding = 100 * torch.finfo(torch.float64).eps * float(grad(loss)(start).norm())
    error = float((operator @ v - problem.dense() @ v).norm())
    assert error <= step**2 / 6 * largest * 1.01 + rounding / step
    assert error > 0  # it is a difference, not the exact product
    assert float((operator @ (3 * v) - 3 * (operator @ v)).norm()) <= 1e-9  # the step does not depend on |v|


def test_default_difference_step_is_accurate_in_single_precision() -> None:
    problem = mlp()
    dense = problem.dense()
    single = problem.model.float()
    data = [(x.float(), y) for x, y in problem.data]
    operator = HessianOperator(single, problem.loss_fn, data, product="finite_difference")
    v = torch.randn(operator.size)
    expected = dense @ v.double()
    assert float(((operator @ v).double() - expected).norm() / expected.norm()) < 5e-3


def test_half_precision_models_use_single_precision_vectors() -> None:
    problem = mlp()
    dense = problem.dense()
    data = [(x.bfloat16(), y) for x, y in problem.data]
    operator = HessianOperator(problem.model.bfloat16(), problem.loss_fn, data)
    assert operator.dtype == torch.float32
    assert operator.settings["dtype"] == "bfloat16"
    v = torch.randn(operator.size)
    got, expected = (operator @ v).double(), dense @ v.double()
    assert float((got - expected).norm() / expected.norm()) < 0.1


def test_operations_without_forward_derivatives() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x.square() * g

    class Cubic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1.0, 2.0]).double())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ Cube.apply(self.w)

    x = torch.ones(2, 2).double()
    operator = HessianOperator(Cubic(), lambda out, _: out.mean(), [(x, x), (x, x)])
    torch.testing.assert_close(operator @ torch.ones(2).double(), torch.tensor([6.0, 12.0]).double())


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")
def test_products_equal_forward_over_reverse(name: str) -> None:
    problem = PROBLEMS[name]()
    operator = HessianOperator(problem.model, problem.loss_fn, problem.data)
    named = {n: p.detach() for n, p in problem.model.named_parameters()}
    v = {n: torch.randn_like(p) for n, p in named.items()}
    problem.model.eval()

    def loss(params: dict[str, torch.Tensor]) -> torch.Tensor:
        return problem.loss_fn(functional_call(problem.model, params, (problem.inputs,)), problem.targets)

    expected = jvp(grad(loss), (named,), (v,))[1]
    flat = torch.cat([v[n].reshape(-1) for n in named])
    torch.testing.assert_close(
        operator @ flat, torch.cat([expected[n].reshape(-1) for n in named]), rtol=1e-9, atol=1e-11
    )


def test_works_under_no_grad_and_inference_mode() -> None:
    problem = quadratic([3.0, 1.0])
    with torch.no_grad():
        operator = HessianOperator(problem.model, problem.loss_fn, problem.data)
        v = torch.ones(2).double()
        expected = operator.to_dense() @ v
        torch.testing.assert_close(operator @ v, expected)
    assert float(expected.norm()) > 0


def test_as_scipy_operator() -> None:
    linalg = pytest.importorskip("scipy.sparse.linalg")
    problem = transformer()
    operator = HessianOperator(problem.model, problem.loss_fn, problem.data)
    values = linalg.eigsh(operator.to_scipy(), k=3, which="LA", return_eigenvectors=False)
    expected = torch.linalg.eigvalsh(problem.dense())[-3:]
    torch.testing.assert_close(torch.from_numpy(values).sort().values, expected, rtol=1e-7, atol=1e-9)


def test_settings_say_what_was_measured() -> None:
    problem = mlp()
    operator = HessianOperator(problem.model, problem.loss_fn, problem.data)
    settings = operator.settings
    assert (settings["samples"], settings["batches"], settings["mode"]) == (11, 3, "eval")
    assert (settings["dtype"], settings["parameters"], settings["torch"]) == ("float64", 51, torch.__version__)
    problem.model.eval()
    loss = problem.loss_fn(problem.model(problem.inputs), problem.targets).item()
    assert math.isclose(operator.loss, loss, rel_tol=1e-12)


@pytest.mark.parametrize("shape", [(3,), (51, 1, 1), (3, 51)])
def test_wrong_shapes_are_refused(shape: tuple[int, ...]) -> None:
    problem = mlp()
    operator = HessianOperator(problem.model, problem.loss_fn, problem.data)
    with pytest.raises(ValueError, match="51"):
        operator @ torch.zeros(shape)
