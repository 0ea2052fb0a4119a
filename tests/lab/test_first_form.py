"""Run folders written by the first form of the library are found by the same command, and resume bit for bit."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lesam.lab import models
from lesam.lab.cli import main
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs.folder import RunFolder, read_rows
from tests.fixtures.first_form.arithmetic import digit_batches, plain_steps

RUNS = Path(__file__).parents[1] / "fixtures" / "first_form" / "runs"
NAMES = sorted(path.name for path in (RUNS / "stopped").iterdir())
CLOCKS = ("images_per_second", "seconds", "elapsed")


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rounds_as_recorded(name: str) -> bool:
    """See the fixtures' ``arithmetic.py``: bits can be asked for only where plain torch gives the recorded ones."""
    model = models.build("digits_cnn", 10, width=8)
    (stopped,) = checkpoints.listed(RUNS / "stopped" / name / "checkpoints")
    model.load_state_dict(stopped.weights())
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    recorded = load_file(RUNS / "finished" / name / "plain_steps.safetensors")["weights"]
    return torch.equal(plain_steps(model, base, digit_batches()), recorded)


def assert_rows_agree(ours: list[dict[str, Any]], recorded: list[dict[str, Any]], *, exact: bool) -> None:
    """Every recorded column, clocks apart; a later version may write more of them."""
    assert len(ours) == len(recorded)
    for row, expected in zip(ours, recorded, strict=True):
        values = {key: row[key] for key in expected}
        assert values == (expected if exact else pytest.approx(expected, rel=0.02, abs=0.02))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", NAMES)
def test_a_run_folder_of_the_first_form_resumes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exact = rounds_as_recorded(name)
    shutil.copytree(RUNS / "stopped" / name, tmp_path / name)
    run = RunFolder(tmp_path / name)
    (start,) = run.environments()
    assert main([*shlex.split(start["command"])[1:], "-o", str(tmp_path)]) == 0

    assert [path.name for path in tmp_path.iterdir()] == [name], "the command found another folder than the saved one"
    assert "step 7" in capsys.readouterr().out
    assert len(run.environments()) == 2
    summary = run.summary()
    assert summary is not None
    assert name.endswith(summary["fingerprint"])

    newest, complaints = checkpoints.newest_valid(run.checkpoints)
    assert newest is not None
    assert not complaints
    assert newest.step == 15
    ours, recorded = newest.weights(), load_file(RUNS / "finished" / name / "weights.safetensors")
    assert ours.keys() == recorded.keys()
    for key, value in recorded.items():
        torch.testing.assert_close(ours[key], value, rtol=0 if exact else 1e-3, atol=0 if exact else 1e-3)
    for file, rows in (("metrics.jsonl", run.metrics()), ("steps.jsonl", run.steps())):
        assert_rows_agree(rows, read_rows(RUNS / "finished" / name / file), exact=exact)


def test_the_stopped_runs_are_those_of_the_first_form() -> None:
    assert [name.rpartition("-")[0] for name in NAMES] == ["digits-smoke-friendlysam-seed0", "digits-smoke-lesam-seed0"]
    for name in NAMES:
        (start,) = json.loads((RUNS / "stopped" / name / "environment.json").read_text())
        assert start["packages"]["lesam"] == "0.1.0.dev0"
