"""What the benchmarks count with, and how they report."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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


class Bytes(TorchDispatchMode):
    """Follows the bytes held by storages born inside: their sum now, and at its highest."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.alive: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {_storage(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta" and _storage(tensor) not in known:
                self._born(tensor)
        return out

    def _born(self, tensor: torch.Tensor) -> None:
        import weakref

        key, size = _storage(tensor), tensor.untyped_storage().nbytes()
        if key in self.alive:
            return
        self.alive[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(tensor.untyped_storage(), self._died, key)

    def _died(self, key: int) -> None:
        self.now -= self.alive.pop(key, 0)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


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
