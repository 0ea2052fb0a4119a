"""Every package that the code imports is declared, in the extra of the room that imports it."""

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
NAMED_OTHERWISE = {"PIL": "pillow", "sklearn": "scikit-learn"}
# The lab logs to it where it is installed, and refuses by name where it is not.
OPTIONAL = {"trackio"}

pytestmark = pytest.mark.skipif(not PROJECT.exists(), reason="the project file is not part of an installed package")


def imported(folder: Path) -> set[str]:
    """Top-level packages that the files of a folder import, anywhere in them."""
    found: set[str] = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module.partition(".")[0])
    return {NAMED_OTHERWISE.get(name, name) for name in found - set(sys.stdlib_module_names) - {"lesam"}} - OPTIONAL


@pytest.mark.parametrize(
    ("room", "extras"),
    [
        ("optim", []),
        ("flatness", ["flatness", "lab"]),  # its figures are drawn where matplotlib is
        ("integrations", ["lightning", "transformers"]),
        ("lab", ["lab"]),
    ],
)
def test_a_room_imports_what_is_declared(room: str, extras: list[str]) -> None:
    project = tomllib.loads(PROJECT.read_text())["project"]
    declared = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    names = {re.split(r"[<>=\[ ]", one)[0].lower() for one in declared}
    assert {name.lower() for name in imported(PACKAGE / room)} <= names
