"""A run that loses its numbers says so: the step, the summary, the exit status, the tables; and it stops."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lesam.lab import recipes
from lesam.lab.cli import main
from lesam.lab.config.text import override
from lesam.lab.execution.local import Pool
from lesam.lab.paper.experiment import Cell, Request, Variant
from lesam.lab.paper.grid import Grid, last
from lesam.lab.report import plots, tables
from lesam.lab.runs.folder import RunFolder, find_runs
from lesam.lab.runs.repetitions import group
from lesam.lab.sweeps import compare
from lesam.lab.tasks.metrics import Seen
from lesam.lab.training.divergence import lost_since
from lesam.lab.training.loop import train
from tests.lab.running import BreakOff, Listener, smoke, trained

# Weights become infinite within the first steps.
LOST = ("optimizer.lr=1e30", "optimizer.weight_decay=0.0", "schedule.epochs=6", "system.accelerator=cpu")


def first_lost(folder: RunFolder) -> int:
    """The first window of one step without a loss, from the rows alone."""
    return next(row["step"] for row in folder.steps() if row["train_loss"] is None and row["perturbed_loss"] is None)


@pytest.mark.parametrize("method", ["sgd", "lesam", "msam"])
def test_the_step_is_named_and_the_run_stops(method: str, tmp_path: Path) -> None:
    config = smoke("digits", *LOST, "record.steps_every=1", "record.evaluate_every=6", method=method)
    listener = Listener()
    summary = train(config, runs=tmp_path, progress=listener)
    folder = RunFolder.of(config, tmp_path)
    assert summary["diverged_at"] == first_lost(folder) > 0
    losses = [row["perturbed_loss" if method == "msam" else "train_loss"] for row in folder.metrics()]
    assert len(losses) < 6
    assert losses[-1] is None
    assert "test_accuracy" in summary["last"], "a table could not show the run"
    assert any(f"diverged at step {summary['diverged_at']}" in text for text in listener.messages)
    assert not any(text.startswith("finished") for text in listener.messages)


def test_without_the_stop_all_epochs_are_trained_and_the_step_is_the_same(tmp_path: Path) -> None:
    early = train(smoke("digits", *LOST), runs=tmp_path / "early", progress=Listener())
    whole = train(smoke("digits", *LOST, "record.stop_diverged=false"), runs=tmp_path / "whole", progress=Listener())
    assert whole["last"]["epoch"] == 5 > early["last"]["epoch"]
    assert whole["diverged_at"] == early["diverged_at"]


def test_a_run_that_resumes_knows_since_when_it_is_lost(tmp_path: Path) -> None:
    changes = (*LOST, "record.stop_diverged=false", "record.checkpoint_every=1")
    whole = train(smoke("digits", *changes), runs=tmp_path / "whole", progress=Listener())
    with pytest.raises(ConnectionError):
        train(smoke("digits", *changes), runs=tmp_path / "broken", progress=BreakOff(epochs=4))
    broken = train(smoke("digits", *changes), runs=tmp_path / "broken", progress=Listener())
    assert broken["diverged_at"] == whole["diverged_at"]


def test_a_lost_step_in_between_is_no_divergence() -> None:
    table = torch.full((3, len(Seen._fields)), math.nan)
    table[0, 0] = table[2, 1] = 1.0  # one step saw its clean loss, one its perturbed one
    assert lost_since(table, first_step=6, before=None) is None
    assert lost_since(table[:2], first_step=6, before=2) == 7
    assert lost_since(table[1:2], first_step=9, before=7) == 7


def test_the_command_ends_with_a_status_and_trains_again_only_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "digits", "--method", "sgd", "--scale", "smoke", "--accelerator", "cpu", "-o", str(tmp_path)]
    command += [part for setting in LOST for part in ("--set", setting)]
    assert main(command) == 3
    (folder,) = find_runs([tmp_path])
    assert f"at step {first_step(folder)}; --again trains anew" in capsys.readouterr().err
    old = (folder.path / "metrics.jsonl").read_bytes()
    assert main(command) == 3
    assert len(folder.environments()) == 1
    assert "nothing to do" in capsys.readouterr().out
    assert main([*command, "--again"]) == 3
    assert len(folder.environments()) == 2
    assert (folder.path / "earlier" / "1" / "metrics.jsonl").read_bytes() == old
    assert (folder.path / "earlier" / "1" / "summary.json").exists()
    assert [run.path for run in find_runs([tmp_path])] == [folder.path], "old results are no repetition"


def first_step(folder: RunFolder) -> int:
    summary = folder.summary()
    assert summary is not None
    return int(summary["diverged_at"])


def test_tables_and_figures_have_a_mark(tmp_path: Path) -> None:
    good = smoke("digits", "system.accelerator=cpu", method="sam")
    runs = [trained(good, tmp_path), trained(override(good, ["optimizer.rho=1e30"]), tmp_path)]
    runs.append(trained(override(recipes.build("digits", method="sgd", scale="smoke", seed=1), LOST), tmp_path))
    groups = group(runs)
    labels = [line.label for line in tables.lines(groups)]
    assert [label.endswith("(1 of 1 diverged)") for label in labels] == [True, False, True]
    legend = plots.curves(groups).axes[0].get_legend_handles_labels()[1]
    assert sum("diverged" in text for text in legend) == 2
    points = plots.sensitivity(groups[1:]).axes[0].get_legend_handles_labels()[1]
    assert "diverged" in points


SWEEP = ("sweep", "digits", "--method", "sam", "--scale", "smoke", "--set", "system.accelerator=cpu")


def test_a_sweep_trains_the_others_and_ends_with_a_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["--grid", "optimizer.rho=1e30,0.05", "--set", "schedule.epochs=6", "--runs", str(tmp_path)]
    assert main([*SWEEP, *grid]) == 3
    lost, good = (RunFolder.of(smoke("digits", f"optimizer.rho={rho}", *CPU, method="sam"), tmp_path) for rho in RHOS)
    captured = capsys.readouterr()
    assert f"lesam: 1 of 2 runs diverged: {lost.path.name} at step {first_step(lost)};" in captured.err
    assert f"{lost.path.name}: diverged, validation accuracy" in captured.out
    assert "2 of 2 runs finished" in captured.out
    assert len(good.metrics()) == 6
    assert main(["table", str(tmp_path), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["n"], row["diverged"]) for row in rows] == [("1", "0"), ("1", "1")]


RHOS, CPU = ("1e30", "0.05"), ("system.accelerator=cpu", "schedule.epochs=6")


def test_a_search_ends_with_a_status_also_when_it_is_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    search = [*SWEEP, "--search", "optimizer.rho=1e30", "--trials", "1", "--runs", str(tmp_path)]
    for _ in range(2):
        assert main(search) == 3
        captured = capsys.readouterr()
        (folder,) = find_runs([tmp_path])
        assert f"1 of 1 runs diverged: {folder.path.name} at step {first_step(folder)};" in captured.err
        assert "best of 1 settings" in captured.out


def test_a_comparison_marks_the_method_and_ends_with_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"sgd": (("optimizer.lr=0.1",),), "sam": (("optimizer.rho=1e30",), ("optimizer.rho=1e29",))}
    monkeypatch.setattr(compare, "SETTINGS", settings)
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append(figure))
    assert main(["compare", "--scale", "smoke", "--seeds", "0", "--jobs", "1", "-o", str(tmp_path)]) == 3
    captured = capsys.readouterr()
    written = (tmp_path / "compare.md").read_text()
    (sgd,) = (line for line in written.splitlines() if line.startswith("| SGD "))
    (sam,) = (line for line in written.splitlines() if line.startswith("| SAM "))
    assert "‡" not in sgd
    assert "‡" in sam
    lost = [run.path.name for run in find_runs([tmp_path]) if run.config().method == "sam" and run.config().seed == 0]
    assert f"‡ SAM: {lost[0]} diverged." in written
    assert written.splitlines()[-1] in captured.out
    assert f"1 of 2 runs diverged: {lost[0]} at step" in captured.err
    assert "SAM (1 of 1 diverged)" in drawn[0].axes[0].get_legend_handles_labels()[1]


def test_a_setting_that_diverged_wins_no_search_while_another_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that are no numbers name the first class, which may be more accurate than a bad start."""
    monkeypatch.setattr(compare, "SETTINGS", {"sam": (("optimizer.rho=1e30",), ("optimizer.lr=1e-12",))})
    (result,) = compare.compare(Pool(runs=tmp_path, jobs=1), runs=tmp_path, seeds=(0,), scale="smoke", methods=("sam",))
    assert result.setting == ("optimizer.lr=1e-12",)
    assert not result.diverged


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_experiment_marks_the_run_and_ends_with_a_status(
    jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = ["reproduce", "stabilisers", "--scale", "smoke", "-o", str(tmp_path), "--jobs", jobs]
    assert main(experiment) == 0
    capsys.readouterr()
    lost = find_runs([tmp_path / "runs"])[0]
    lost.finish({**(lost.summary() or {}), "diverged_at": 5})
    assert main(experiment) == 3
    captured = capsys.readouterr()
    assert f"lesam: stabilisers: 1 of 4 runs diverged: {lost.path.name} at step 5;" in captured.err
    table = (tmp_path / "stabilisers" / "smoke" / "table.md").read_text()
    assert f"{lost.path.name} diverged." in table
    assert table in captured.out


def test_a_mean_over_fewer_seeds_says_so(tmp_path: Path) -> None:
    """A diverged run has no loss, and its accuracy is that of chance: the one is missing, the other counts."""
    configs = tuple(recipes.build("digits", method="sgd", scale="smoke", seed=seed) for seed in range(3))
    runs = []
    for config, loss in zip(configs, (1.0, 2.0, None), strict=True):
        run = RunFolder.of(config, tmp_path)
        run.create(config, {})
        best = {"test_accuracy": 0.5, "epoch": 0}
        row = {"train_loss": loss, "test_accuracy": 0.5}
        run.finish({"folder": run.path.name, "last": row, "best_test_selected": best})
        runs.append(run)
    quantities = {"loss": last("train_loss"), "accuracy (%)": last("test_accuracy", 100.0)}
    rows, columns = {"SGD": Variant(method="sgd")}, {"digits": "digits"}
    grid = Grid(name="small", title="small", rows=rows, columns=columns, quantities=quantities)
    request = Request(scale="smoke", seeds=(0, 1, 2), runs=tmp_path)
    report = grid.report(request, [Cell(row="SGD", column="digits", configs=configs, runs=tuple(runs))])
    assert report.tables["loss"][1] == ["SGD", "1.5 ± 0.71 (n = 2 of 3) ‡"]
    assert report.tables["accuracy (%)"][1] == ["SGD", "50.00 ± 0.00 ‡"]
    assert any(f"{runs[2].path.name} diverged" in note for note in report.notes)
