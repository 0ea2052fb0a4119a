"""A stand-in for a network, and how the benchmarks report; they count with `lesam.optim.selfcheck.counting`."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

RESULTS = Path(__file__).parent / "results"


class _Link(torch.autograd.Function):
    """Passes a number along; its backward hands a ready-made gradient to one parameter."""

    @staticmethod
    def forward(ctx: Any, number: Tensor, parameter: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return number.clone()

    @staticmethod
    def backward(ctx: Any, passed: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        return passed, ctx.gradient.clone(memory_format=torch.preserve_format), None


class Gradients:
    """Stands in for a network: a backward that does nothing but deliver ready-made gradients.

    They come through autograd as those of a layered network do, one parameter at a time, the last one first.
    """

    def __init__(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor] | None = None) -> None:
        self.parameters = list(parameters)
        self.ready = [torch.randn_like(p) * 1e-2 for p in parameters] if gradients is None else list(gradients)
        self.start = torch.zeros(())

    def loss(self) -> Tensor:
        """The forward pass; the loss is zero."""
        number = self.start
        for parameter, gradient in zip(self.parameters, self.ready, strict=True):
            number = _Link.apply(number, parameter, gradient)
        return number


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table for the terminal."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(heads, *rows, strict=True)]
    lines = [
        "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [heads, *rows]
    ]
    return "\n".join([title, *lines, ""])


def report(name: str, results: Any, targets: Any = None) -> Path:
    """Write ``results/<name>.json`` with what is needed to read the numbers later."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    body = {"results": results, "targets": targets, "environment": environment()}
    path.write_text(json.dumps(body, indent=2) + "\n")
    print(f"written to {path}")
    return path


def environment() -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=RESULTS.parent)
    return {
        "commit": commit.stdout.strip() or None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
