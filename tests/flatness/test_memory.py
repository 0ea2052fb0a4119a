"""The memory of a product does not grow with the number of batches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import resource, torch
from torch import nn
from lesam.flatness import HessianOperator
torch.set_num_threads(1)
model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())])
x = torch.randn(4096, 64)  # activations of a batch: about 12 x 1 MB, several times that for a product
def peak(batches):
    operator = HessianOperator(model, nn.functional.mse_loss, [(x, x)] * batches)
    operator @ torch.ones(operator.size)
    operator @ torch.ones(operator.size, 2)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
few = peak(2)
print(peak(12) - few)
"""


def test_peak_memory_is_flat_in_the_number_of_batches() -> None:
    pytest.importorskip("resource")
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    assert float(run.stdout) < 12  # MB; keeping one more graph would add 30
