"""Measuring a small run is cheap by default, and says beforehand how long it takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lesam.lab.cli import main
from lesam.lab.flatness.estimate import estimate, scale_of
from lesam.lab.runs.folder import RunFolder
from tests.lab.running import smoke, trained


def with_pace(path: Path, scale: str, pace: float) -> RunFolder:
    """A run that trained at a number of images a second with two passes."""
    run = RunFolder(path)
    run.create(replace(smoke("digits", method="sam"), scale=scale), {})
    run.append({"epoch": 0, "images_per_second": pace, "passes": 2.0, "seconds": 1000 / pace}, [])
    return run


def test_the_estimate_is_the_work_over_the_pace(tmp_path: Path) -> None:
    run = with_pace(tmp_path / "run", "small", 500.0)
    # 60 gradients of 1,000 images at 1,000 a second
    assert "0:01:00" in estimate([run], lambda run: 60, 1000, "--less")
    assert "--less" not in estimate([run], lambda run: 60, 1000, "--less")
    assert "0:20:00" in (long := estimate([run, run], lambda run: 600, 1000, "--less"))
    assert "cheaper: --less" in long
    assert "0:01:00" in estimate([run], lambda run: 60, 5000, "--less")  # the run has no more than 1,000 images


def test_the_scale_of_the_runs_decides(tmp_path: Path) -> None:
    small, paper = with_pace(tmp_path / "a", "small", 1.0), with_pace(tmp_path / "b", "paper", 1.0)
    assert (scale_of([small]), scale_of([small, paper])) == ("small", "paper")


def test_a_small_run_is_measured_cheaply_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = trained(smoke("digits", "schedule.epochs=1"), tmp_path / "runs")
    assert main(["flatness", "runs", "--device", "cpu"]) == 0
    assert "at the pace of training" in capsys.readouterr().out.splitlines()[0]
    (trace,) = run.path.glob("flatness/*-trace-*.json")
    assert json.loads(trace.read_text())["settings"]["key.trace.samples"] == 20
    # An option overrides itself and nothing else, also where it is the default of the paper's scale.
    assert main(["flatness", "runs", "--device", "cpu", "--lpf-samples", "20", "--density-draws", "0"]) == 0
    assert list(run.path.glob("flatness/*-trace-*.json")) == [trace]
    assert "LPF: 20 draws" in capsys.readouterr().out
    assert main(["landscape", "runs", "--one-dimensional", "--device", "cpu"]) == 0
    assert "at the pace of training" in capsys.readouterr().out.splitlines()[0]


def test_the_estimate_counts_the_low_pass_filter_at_every_kept_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(smoke("digits", "schedule.epochs=3", "record.keep_epochs=1,2,3"), tmp_path / "runs")
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    slow = [row | {"images_per_second": 3.0, "seconds": 100.0, "passes": 1.0} for row in rows]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in slow))
    arguments = ["flatness", str(run.path), "--eigenvalues", "0", "--trace-samples", "0", "--lpf-samples", "3"]
    assert main([*arguments, "--device", "cpu", "-o", str(tmp_path)]) == 0
    # A third of a gradient a draw, three draws, three checkpoints: three gradients of 300 images at 3 a second.
    assert "0:05:00" in capsys.readouterr().out.splitlines()[0]
