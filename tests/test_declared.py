"""Every package that the code imports is declared, in the extra of the room that imports it, and no other is."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

import lesam

PACKAGE = Path(lesam.__file__).parent
PROJECT = PACKAGE.parent / "pyproject.toml"
NAMED_OTHERWISE = {
    "PIL": "pillow",
    "curvlinops": "curvlinops-for-pytorch",
    "griffe": "griffelib",
    "grpc": "grpcio",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
# The lab logs to it where it is installed, and refuses by name where it is not.
OPTIONAL = {"trackio"}

pytestmark = pytest.mark.skipif(not PROJECT.exists(), reason="the project file is not part of an installed package")


def imported(folder: Path) -> set[str]:
    """Top-level packages that a file, or those of a folder, import anywhere in them."""
    found: set[str] = set()
    for file in [folder] if folder.is_file() else folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module.partition(".")[0])
    return {NAMED_OTHERWISE.get(name, name) for name in found - set(sys.stdlib_module_names) - {"lesam"}} - OPTIONAL


# Tests that need a browser are skipped where there is none.
BROWSER = {"playwright"}
# Declared and imported by others only: Lightning's logger writes with the one, Optuna's gRPC proxy with the other.
IMPORTED_ELSEWHERE = {"tensorboard", "protobuf"}


def declared(*extras: str) -> set[str]:
    """Names of the packages that come with these extras."""
    optional = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    return {plain(re.split(r"[<>=\[ ]", one)[0]) for extra in extras for one in optional[extra]}


def imported_by(*folders: str) -> set[str]:
    return {plain(name) for folder in folders for name in imported(PACKAGE.parent / folder)}


def plain(name: str) -> str:
    """Package indexes do not tell ``a_b`` from ``A-b``."""
    return name.lower().replace("_", "-")


@pytest.mark.parametrize(
    ("room", "extras"),
    [
        ("optim", []),
        ("flatness", ["flatness", "lab"]),  # its figures are drawn where matplotlib is
        ("integrations/_window.py", []),
        ("integrations/lightning.py", ["lightning"]),
        ("integrations/transformers.py", ["transformers"]),
        ("lab", ["lab", "postgresql", "ray", "slurm"]),
    ],
)
def test_a_room_imports_what_is_declared(room: str, extras: list[str]) -> None:
    assert imported_by(f"lesam/{room}") <= declared(*extras) | {"torch"}


@pytest.mark.parametrize(
    ("extra", "room"),
    [
        *(("flatness", "flatness"), ("lightning", "integrations/lightning.py")),
        *(("transformers", "integrations/transformers.py"), ("postgresql", "lab")),
        *(("lab", "lab"), ("ray", "lab"), ("slurm", "lab")),
    ],
)
def test_an_extra_brings_nothing_that_its_room_does_not_import(extra: str, room: str) -> None:
    assert declared(extra) - IMPORTED_ELSEWHERE <= imported_by(f"lesam/{room}")


def test_what_is_around_the_package_imports_what_is_declared() -> None:
    everything = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    folders = ("tests", "benchmarks", "examples", "docs/tutorials", "website")
    ours = {"tests", "benchmarks", "measuring"} | {
        plain(file.stem) for file in (PACKAGE.parent / "website").glob("*.py")
    }
    assert imported_by(*folders) - ours - BROWSER <= declared(*everything) | {"torch"}
