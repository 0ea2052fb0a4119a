"""Tables: the arithmetic, the grouping and where the paper's figure may stand."""

from __future__ import annotations

import csv
import io
import math
import shutil
from pathlib import Path

import pytest

from lesam.lab import recipes
from lesam.lab.cli import main
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.report import tables
from lesam.lab.report.plots import over_seeds
from lesam.lab.runs.folder import RunFolder, find_runs
from lesam.lab.runs.repetitions import group
from lesam.lab.runs.statistics import Spread


def finished(config: RunConfig, runs: Path, last: float, best: float, capped: list[float | None]) -> RunFolder:
    """A run folder as the loop leaves it, with chosen results."""
    folder = RunFolder.of(config, runs)
    folder.create(config, {"command": "by hand"})
    for epoch, share in enumerate(capped):
        folder.append({"epoch": epoch, "test_accuracy": last, "train_accuracy": 1.0, "capped": share}, [])
    row = {"test_accuracy": last, "train_accuracy": 1.0}
    folder.finish({"last": row, "best_test_selected": {"test_accuracy": best, "epoch": 0}})
    return folder


def paper(method: str, seed: int) -> RunConfig:
    return recipes.build("cifar100-resnet18", method=method, scale="paper", seed=seed)


def test_mean_and_sample_standard_deviation() -> None:
    spread = Spread.of([0.80, 0.81, 0.84])
    assert spread.mean == pytest.approx(0.81666667)
    assert spread.std == pytest.approx(math.sqrt(((1 / 60) ** 2 + (1 / 150) ** 2 + (7 / 300) ** 2) / 2))
    assert spread.text() == "81.67 ± 2.08"
    assert Spread.of([0.5]).text() == "50.00"
    with pytest.raises(ValueError, match="no values"):
        Spread.of([])


def test_repetitions_share_a_line_and_other_settings_do_not(tmp_path: Path) -> None:
    for seed, last in enumerate((0.80, 0.82)):
        finished(paper("lesam", seed), tmp_path, last, last + 0.01, [0.0, 1.0])
    finished(override(paper("lesam", 0), ["optimizer.sigma=0.3"]), tmp_path, 0.7, 0.7, [None])
    finished(paper("sgd", 0), tmp_path, 0.78, 0.79, [None])
    lines = tables.lines(group(find_runs([tmp_path])))
    assert [(line.label, line.last.n) for line in lines] == [
        ("SGD", 1),
        ("LE-SAM (sigma=0.3)", 1),
        ("LE-SAM (sigma=0.35)", 2),
    ]
    assert lines[2].last.mean == pytest.approx(0.81)
    assert lines[2].best.mean == pytest.approx(0.82)
    assert lines[2].capped == pytest.approx(0.5)
    assert [line.paper for line in lines] == [(78.31, 0.10), None, (81.51, 0.08)]


def test_unfinished_runs_are_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished(paper("sam", 0), tmp_path, 0.8, 0.8, [None])
    unfinished = RunFolder.of(paper("sam", 1), tmp_path)
    unfinished.create(paper("sam", 1), {})
    (line,) = tables.lines(group(find_runs([tmp_path])))
    assert line.last.n == 1
    for form in ("markdown", "latex", "csv"):
        assert main(["table", str(tmp_path), "--format", form]) == 0
        printed = capsys.readouterr()
        assert str(unfinished.path) in (printed.err if form == "csv" else printed.out)
        assert form != "csv" or str(unfinished.path) not in printed.out


def test_copies_of_a_run_count_once_and_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = finished(paper("sam", 0), tmp_path / "here", 0.8, 0.8, [None])
    finished(paper("sam", 1), tmp_path / "here", 0.9, 0.9, [None])
    shutil.copytree(run.path, tmp_path / "there" / "the-same-elsewhere")
    RunFolder.of(paper("sam", 0), tmp_path / "aborted").create(paper("sam", 0), {})
    (line,) = tables.lines(group(find_runs([tmp_path / "aborted", tmp_path])))
    assert line.last.n == 2
    assert line.last.mean == pytest.approx(0.85)
    assert main(["table", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "the-same-elsewhere" in printed
    assert "aborted" in printed


def test_a_seed_given_twice_is_trained_and_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--scale", "smoke", "--seeds", "0", "0", "1", "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert [line for line in printed.out.splitlines() if line.startswith('  "seed"')] == [
        '  "seed": 0,',
        '  "seed": 1,',
    ]
    assert "seed 0" in printed.err


def test_the_gain_over_the_base_is_taken_seed_by_seed(tmp_path: Path) -> None:
    for seed, (plain, ours) in enumerate(((0.70, 0.72), (0.80, 0.83))):
        finished(paper("sgd", seed), tmp_path, plain, plain, [None])
        finished(paper("sam", seed), tmp_path, ours, ours, [None])
    finished(paper("sam", 2), tmp_path, 0.1, 0.1, [None])  # there is no plain run with this seed
    base, line = tables.lines(group(find_runs([tmp_path])))
    assert base.gain is None
    assert line.gain is not None
    assert (line.gain.n, line.gain.mean) == (2, pytest.approx(0.025))
    assert line.gain.std == pytest.approx(0.01 / math.sqrt(2))
    assert "+2.50 ± 0.71 (n = 2)" in tables.markdown([line])


def test_every_format_has_the_numbers(tmp_path: Path) -> None:
    for seed, last in enumerate((0.80, 0.82)):
        finished(paper("lesam", seed), tmp_path, last, last, [0.25])
    lines = tables.lines(group(find_runs([tmp_path])))
    markdown = tables.markdown(lines)
    assert "| LE-SAM | 2 | 81.00 ± 1.41 | 81.00 ± 1.41 | 100.00 ± 0.00 | 25 | 81.51 ± 0.08 |" in markdown
    assert "n - 1" in markdown
    latex = tables.latex(lines)
    assert r"81.00 $\pm$ 1.41" in latex
    assert latex.count(r"\\") == 2
    (row,) = csv.DictReader(io.StringIO(tables.comma_separated(lines)))
    assert float(row["test_mean"]) == pytest.approx(0.81)
    assert float(row["test_std"]) == pytest.approx(0.0141421356)
    assert (row["paper_mean"], row["paper_std"]) == ("0.8151", "0.0008")  # in the unit of the other columns


def test_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run folders"):
        find_runs([tmp_path])


def test_curves_are_means_over_the_seeds_that_have_an_epoch() -> None:
    runs = [
        [{"epoch": 0, "rho": 1.0}, {"epoch": 1, "rho": 2.0}, {"epoch": 2, "rho": 9.0}],
        [{"epoch": 0, "rho": None}, {"epoch": 1, "rho": 4.0}],
    ]
    epochs, mean, std = over_seeds(runs, "rho")
    assert epochs.tolist() == [1, 2, 3]
    assert mean.tolist() == [1.0, 3.0, 9.0]
    assert std.tolist() == pytest.approx([0.0, math.sqrt(2), 0.0])


def test_every_setting_that_differs_is_in_the_label(tmp_path: Path) -> None:
    plain = recipes.build("digits", method="sam", scale="smoke", seed=0)
    changes = [
        [],
        ["optimizer.micro_batches=2"],
        ["data.options.test_size=100"],
        ["optimizer.lr=0.3", "schedule.lr=constant"],
    ]
    for number, change in enumerate(changes):
        finished(override(plain, change), tmp_path, 0.5 + number / 10, 0.5, [None])
    labels = [each.label for each in group(find_runs([tmp_path]))]
    assert len(set(labels)) == len(changes)
    assert any("micro_batches=2" in label for label in labels)
    assert any("test_size=100" in label for label in labels)
    assert any("optimizer.lr=0.3" in label and "schedule.lr=constant" in label for label in labels)


@pytest.mark.parametrize("change", ["schedule.epochs=8", "data.options.test_size=100", "model.options.width=16"])
def test_a_gain_is_over_the_same_data_network_and_length(tmp_path: Path, change: str) -> None:
    sgd = recipes.build("digits", method="sgd", scale="smoke", seed=0)
    sam = recipes.build("digits", method="sam", scale="smoke", seed=0)
    finished(sgd, tmp_path, 0.5, 0.5, [None])
    finished(sam, tmp_path, 0.6, 0.6, [None])
    finished(override(sam, [change]), tmp_path, 0.7, 0.7, [None])
    gains = sorted(line.gain.mean for line in tables.lines(group(find_runs([tmp_path]))) if line.gain is not None)
    assert gains == [pytest.approx(0.1)]


def test_a_run_without_a_test_accuracy_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished(paper("sam", 0), tmp_path, 0.8, 0.8, [None])
    untested = finished(paper("sam", 1), tmp_path, 0.8, 0.8, [None])
    nothing = {"test_accuracy": None, "train_accuracy": None}
    untested.finish({"last": nothing, "best_test_selected": {"test_accuracy": None, "epoch": 0}})
    partly = finished(paper("sam", 2), tmp_path, 0.8, 0.8, [None])
    partly.finish({"last": {"test_accuracy": 0.6}, "best_test_selected": {"test_accuracy": None, "epoch": 0}})
    assert main(["table", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "| SAM | 2 | 70.00 ± 14.14 | 80.00 | 100.00 |" in printed
    assert f"Finished without a test accuracy and left out: {untested.path}." in printed
