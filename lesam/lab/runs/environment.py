"""What a run ran on: versions, commit, hardware and command, for ``environment.json``."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("lesam", "torch", "torchvision", "lightning-fabric", "numpy", "safetensors")


def describe() -> dict[str, Any]:
    """The environment of this process as plain values."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hostname": platform.node(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "cpu": {
            "model": _cpu_model(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
    }


def commit() -> dict[str, Any] | None:
    """Commit of the source tree this package lies in, and whether it was changed since; None outside of git."""
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return {"id": git("rev-parse", "HEAD"), "modified": bool(git("status", "--porcelain", "--", str(here.parent)))}
    except (OSError, subprocess.SubprocessError):
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()
