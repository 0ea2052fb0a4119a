"""Rooms import downwards only, and `import lesam` brings torch and nothing else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lesam"
ALLOWED = {
    "optim": {"optim"},
    "flatness": {"optim", "flatness"},
    "integrations": {"optim", "integrations"},
    "lab": {"optim", "flatness", "integrations", "lab"},
}


# The rooms of the lab, from the lowest: a room imports from itself and from those before it, in functions as well.
LAB = (
    *("files", "console", "config", "device", "data", "models", "runs", "tasks", "flatness", "attacks", "training"),
    *("execution", "recipes", "sweeps", "report", "paper", "commands", "cli"),
)
MOST_MODULES = 6
"""Directly in ``lesam/lab``; everything else has a room."""


def imported_names(file: Path) -> list[str]:
    """What a file imports, as dotted names, relative imports resolved."""
    parts = ("lesam", *file.relative_to(PACKAGE).with_suffix("").parts)
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            head = ".".join(parts[: len(parts) - node.level]) if node.level else ""
            module = ".".join(filter(None, (head, node.module)))
            names += [f"{module}.{alias.name}" for alias in node.names]
    return names


def imported_rooms(file: Path) -> set[str]:
    """The rooms of this package that a file imports."""
    return {name.split(".")[1] for name in imported_names(file) if name.startswith("lesam.")} & set(ALLOWED)


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_go_downwards(room: str):
    files = list((PACKAGE / room).rglob("*.py"))
    assert files
    for file in files:
        assert imported_rooms(file) <= ALLOWED[room], file


def lab_room(path: Path) -> str:
    return path.relative_to(PACKAGE / "lab").parts[0].removesuffix(".py")


def test_every_room_of_the_lab_has_its_place():
    found = {lab_room(path) for path in (PACKAGE / "lab").rglob("*.py")} - {"__init__"}
    assert found == set(LAB)
    assert len(list((PACKAGE / "lab").glob("*.py"))) <= MOST_MODULES


@pytest.mark.parametrize("room", LAB)
def test_imports_go_downwards_in_the_lab(room: str):
    below = set(LAB[: LAB.index(room) + 1])
    for file in (file for file in (PACKAGE / "lab").rglob("*.py") if lab_room(file) == room):
        names = [name.split(".") for name in imported_names(file) if name.startswith("lesam.lab.")]
        assert {name[2] for name in names} <= below, file


def test_importing_lesam_brings_torch_alone():
    """In a fresh interpreter, whatever `import torch` does not bring and `import lesam` does is ours."""
    code = (
        "import sys, torch; before = set(sys.modules); import lesam, lesam.schedules; "
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    third_party = set(ast.literal_eval(printed)) - {"lesam", "torch"} - set(sys.stdlib_module_names)
    assert third_party == set()


def test_training_begins_without_what_it_does_not_use():
    """Lightning Fabric would import torchmetrics where it is installed, and that as much again as torch."""
    code = "import sys, lesam.lab.training.loop; print([name in sys.modules for name in ('torchmetrics', 'scipy')]); "
    code += "import torchmetrics; print(torchmetrics.__name__); "
    code += "from lightning_fabric.utilities.spike import SpikeDetection; print(SpikeDetection() is not None)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["[False, False]", "torchmetrics", "True"]  # who wants Fabric's class has it


def test_the_multi_tensor_kernels_live_in_one_file():
    users = {file.name for file in PACKAGE.joinpath("optim").rglob("*.py") if "torch._foreach_" in file.read_text()}
    assert users == {"_arithmetic.py"}


def test_the_oldest_torch_that_is_allowed_is_the_one_that_is_tested():
    root = PACKAGE.parent
    tested = re.search(r"^OLDEST_TORCH := (.+)$", (root / "Makefile").read_text(), re.MULTILINE)
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert tested is not None
    assert [f"torch>={tested[1].removesuffix('.0')}"] == project["dependencies"]
