"""Measuring leaves no trace on the model."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lesam.flatness import HessianOperator, landscape, low_pass_filter, spectral_density, top_eigenvalues, trace

from .problems import cnn


def marked_model() -> tuple[nn.Module, list]:
    problem = cnn()
    model = problem.model
    model.train()
    model[1].eval()  # modes that differ between modules
    model[3].weight.requires_grad_(False)
    model[3].weight.requires_grad_(True)
    model[0].weight.grad = torch.full_like(model[0].weight, 7.0)
    model[7].bias.requires_grad_(False)
    return model, problem.data


def everything(model: nn.Module) -> dict[str, object]:
    return {
        "modes": [m.training for m in model.modules()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "gradients": [None if p.grad is None else (id(p.grad), p.grad.tolist()) for p in model.parameters()],
        "weights": [(id(p), p.data_ptr(), p._version, p.tolist()) for p in model.parameters()],
        "buffers": [(id(b), b._version, b.tolist()) for b in model.buffers()],
        "torch random": torch.get_rng_state().tolist(),
        "other random": (random.getstate(), np.random.get_state()[1].tolist()),
        "graph": [(p.grad_fn, p.is_leaf) for p in model.parameters()],
    }


MEASURES = {
    "eigenvalues": lambda m, f, d: top_eigenvalues(HessianOperator(m, f, d), k=2, eigenvectors=True),
    "power": lambda m, f, d: top_eigenvalues(HessianOperator(m, f, d), k=1, method="power", max_iterations=3),
    "differences": lambda m, f, d: HessianOperator(m, f, d, product="finite_difference").to_dense(),
    "train mode": lambda m, f, d: HessianOperator(m, f, d, mode="train").to_dense(),
    "current mode": lambda m, f, d: HessianOperator(m, f, d, mode="current", keep_graphs=2).to_dense(),
    "trace": lambda m, f, d: trace(HessianOperator(m, f, d), samples=9, method="hutch++"),
    "density": lambda m, f, d: spectral_density(HessianOperator(m, f, d), draws=1, steps=3),
    "low pass": lambda m, f, d: low_pass_filter(m, f, d, samples=2),
    "landscape": lambda m, f, d: landscape(m, f, d, points=3),
    "statistics": lambda m, f, d: landscape(m, f, d, points=3, batch_norm="reestimated"),
}


@pytest.mark.parametrize("name", MEASURES)
def test_model_and_random_state_are_unchanged(name: str) -> None:
    model, data = marked_model()
    torch.manual_seed(5)
    before = everything(model)
    MEASURES[name](model, nn.functional.cross_entropy, data)
    assert everything(model) == before


class DrawsNumbers(nn.Module):
    """Uses random numbers without depending on them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 0 * torch.rand(1)


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("drawer", ["model", "loader"])
def test_random_numbers_of_model_and_loader_are_given_back(name: str, drawer: str) -> None:
    problem = cnn()
    model, data = problem.model, problem.data
    if drawer == "model":
        model = DrawsNumbers(model)
    else:  # a DataLoader draws a seed for its workers in each pass
        data = DataLoader(TensorDataset(problem.inputs, problem.targets), batch_size=6)
    before = everything(model)
    MEASURES[name](model, nn.functional.cross_entropy, data)
    assert everything(model) == before


@pytest.mark.parametrize("name", MEASURES)
def test_also_after_an_exception(name: str) -> None:
    model, data = marked_model()
    calls = []

    def fails_later(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return nn.functional.cross_entropy(output, target)

    before = everything(model)
    with pytest.raises(KeyboardInterrupt):
        MEASURES[name](model, fails_later, data)
    assert everything(model) == before
