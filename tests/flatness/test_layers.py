"""Each layer's curvature is that of its block of the dense Hessian, and costs the memory of one layer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lesam.flatness import by_layer

from .problems import PROBLEMS, Problem, mlp


def blocks(problem: Problem) -> dict[str, Tensor]:
    """The diagonal blocks of the dense Hessian, by the module that holds the parameters."""
    dense, start, rows = problem.dense(), 0, dict[str, list[int]]()
    for name, parameter in problem.model.named_parameters():
        rows.setdefault(name.rpartition(".")[0], []).extend(range(start, start + parameter.numel()))
        start += parameter.numel()
    return {name: dense[of][:, of] for name, of in rows.items()}


@pytest.mark.parametrize("name", PROBLEMS)
def test_eigenvalues_and_traces_are_those_of_the_dense_blocks(name: str) -> None:
    problem = PROBLEMS[name]()
    found = by_layer(problem.model, problem.loss_fn, problem.data, k=3, samples=400, tolerance=1e-7)
    expected = blocks(problem)
    assert found.names == list(expected)
    assert found.sizes == [len(block) for block in expected.values()]
    for number, block in enumerate(expected.values()):
        spectrum = torch.linalg.eigvalsh(block).flip(0)[:3]
        torch.testing.assert_close(torch.tensor(found.eigenvalues[number]).double(), spectrum, rtol=1e-6, atol=1e-9)
        error = abs(found.traces[number] - float(block.trace()))
        assert error <= 5 * found.stderrs[number] + 1e-9
        # Hutchinson's variance: 2 (|B|_F^2 - sum_i B_ii^2) / samples.
        variance = 2 * float(block.square().sum() - block.diagonal().square().sum()) / 400
        assert found.stderrs[number] == pytest.approx(variance**0.5, rel=0.35, abs=1e-9)
    assert all(found.converged)


def test_blocks_are_within_the_whole() -> None:
    problem = PROBLEMS["cnn"]()
    found = by_layer(problem.model, problem.loss_fn, problem.data, k=1)
    whole = torch.linalg.eigvalsh(problem.dense())
    assert max(values[0] for values in found.eigenvalues) <= float(whole[-1]) + 1e-9
    assert found.settings["parameters"] == len(whole)
    assert found.settings["layers"] == 5


def test_a_selection_an_iterator_and_progress() -> None:
    problem, seen = mlp(), list[tuple[int, int | None]]()
    found = by_layer(
        problem.model,
        problem.loss_fn,
        iter(problem.data),
        params=lambda name, p: p.ndim > 1,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert found.sizes == [24, 18]
    assert seen == [(1, 2), (2, 2)]
    assert "3" in found.lines()[2]
    with pytest.raises(ValueError, match="got 0"):
        by_layer(problem.model, problem.loss_fn, problem.data, k=0)


SCRIPT = """
import resource, torch
from torch import nn
from lesam.flatness import by_layer
torch.set_num_threads(1)
x = torch.randn(64, 400)
def peak(layers):
    # Layers of 640 KB each, whose Lanczos bases take tens of MB.
    model = nn.Sequential(*[nn.Linear(400, 400, bias=False) for _ in range(layers)])
    by_layer(model, nn.functional.mse_loss, [(x, x)], k=1, samples=2)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
few = peak(2)
print(peak(8) - few)
"""


def test_peak_memory_is_flat_in_the_number_of_layers() -> None:
    pytest.importorskip("resource")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    assert float(run.stdout) < 30  # MB; six further bases would add hundreds
