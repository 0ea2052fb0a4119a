"""What the benchmarks count with, and how they report."""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

RESULTS = Path(__file__).parent / "results"
HOST_READS = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero"}


class Operations(TorchDispatchMode):
    """Counts dispatched operations, and among them those that hand a device value to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func._schema.name] += 1
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        return sum(self.names.values())

    @property
    def host_reads(self) -> int:
        return sum(number for name, number in self.names.items() if name in HOST_READS)


class Bytes:
    """Follows the bytes that torch's CPU allocator hands out inside.

    ``peak`` is how many more there were at the worst moment, ``left`` how many more at the end.
    """

    def __enter__(self) -> Bytes:
        gc.collect()  # what is left of earlier work would be freed inside
        self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
        self._profile.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._profile.__exit__(*error)
        results = self._profile.profiler.kineto_results
        moves = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
        now = self.peak = 0
        for _, size in moves:
            now += size
            self.peak = max(self.peak, now)
        self.left = now


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
