"""Every script in examples/ runs to its last line, which is an assertion."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest

from tests.integrations.processes import run_command

from .. import needs
from .processes import one_at_a_time

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
BEYOND = {
    "fsdp2": [needs.fsdp2_on_cpu],
    "muon": [needs.muon],
    # Lightning's loggers import these.
    "loggers": [needs.package(name, "the example logs to it") for name in ("mlflow", "wandb")],
}
every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
every_script_with_its_needs = pytest.mark.parametrize(
    "script",
    [pytest.param(script, marks=[needs.imports_of(script), *BEYOND.get(script.stem, [])]) for script in SCRIPTS],
    ids=[script.stem for script in SCRIPTS],
)

pytestmark = [
    one_at_a_time,
    pytest.mark.skipif(not SCRIPTS, reason="examples are not part of an installed package"),
]


def run(*command: str, folder: Path, timeout: float = 200.0) -> str:
    """The output of a command that must succeed; whatever it started is gone afterwards."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return run_command(command, folder, environment, limit=timeout)


@every_script_with_its_needs
def test_example(script: Path, tmp_path: Path):
    assert run(sys.executable, str(script), folder=tmp_path).strip(), "an example says what it found"


@every_script
def test_an_example_asserts_what_it_shows(script: Path):
    tree = ast.parse(script.read_text())
    assert any(isinstance(node, ast.Assert) for node in ast.walk(tree))
    assert ast.get_docstring(tree)


def test_torchrun(tmp_path: Path):
    """``--standalone`` finds a free port itself."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    output = run(*torchrun, str(ROOT / "examples" / "ddp.py"), folder=tmp_path)
    assert "two processes differ from one by" in output
