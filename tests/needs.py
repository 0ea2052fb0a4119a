"""What a test needs beyond the oldest supported torch on its own, each with the reason why it is skipped there."""

from __future__ import annotations

import ast
import glob
import importlib.util
import os
import shutil
from pathlib import Path

import pytest
import torch


def torch_from(version: str, reason: str) -> pytest.MarkDecorator:
    """Skip on a torch older than ``version``."""
    older = torch.torch_version.TorchVersion(torch.__version__) < version
    return pytest.mark.skipif(older, reason=f"torch {torch.__version__}, before {version}: {reason}")


def imports_of(script: Path) -> pytest.MarkDecorator:
    """Skip where a package that ``script`` imports is not installed."""
    nodes = list(ast.walk(ast.parse(script.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    packages = {name.partition(".")[0] for name in names}
    missing = sorted(name for name in packages if importlib.util.find_spec(name) is None)
    return pytest.mark.skipif(bool(missing), reason=f"{script.name} needs {', '.join(missing)}")


def package(name: str, reason: str) -> pytest.MarkDecorator:
    """Skip where a package is not installed that not every supported torch has."""
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"there is no {name}: {reason}")


torchao = package("torchao", "0.18 does not import on torch 2.6")
#: torch's own FSDP2 on processors without streams: `Stream.record_event` is missing, and layers wrapped one by one fail
#: in backward ("modified by an inplace operation") with any optimizer.
fsdp2_on_cpu = torch_from("2.7", "its FSDP2 does not train on CPU, with any optimizer")
muon = torch_from("2.9", "it has no Muon")
#: 2.7 stops at an assertion of its own on an event that CPU streams do not give; seen to work in 2.15.
hybrid_sharding_on_cpu = torch_from("2.15", "hybrid sharding on CPU may stop at an assertion of torch's own")


def program(name: str, variable: str, *, elsewhere: str = "") -> str | None:
    """Where a program is: what an environment variable names, else what the path has; None where the test is skipped.

    ``elsewhere`` is a pattern of folders that are not on the path; the last one that fits is taken.

    Where all programs are promised, as in ``.ci/run``, a missing one is an error.
    """
    beside = sorted(glob.glob(f"{elsewhere}/{name}")) if elsewhere else []
    found = os.environ.get(variable) or shutil.which(name) or (beside[-1] if beside else None)
    if found is None and os.environ.get("LESAM_ALL_PROGRAMS"):
        raise FileNotFoundError(f"there is no {name} on the path; install it, or name it by {variable}")
    return found
