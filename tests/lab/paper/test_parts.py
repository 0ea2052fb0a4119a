"""Parts of an experiment merge into its result: no row is lost, and nothing of the user's is deleted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lesam.lab.cli import main

WHOLE = {"LE-SAM", "LE-SAM, no cap, no annealing", "SAM"}
ACCURACY = "Test accuracy of the last epoch (%)"


def arguments(output: Path, *more: str) -> list[str]:
    return ["reproduce", "radius", "--scale", "smoke", "-o", str(output), *more]


def result(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output / "radius" / "smoke" / "result.json").read_text())
    return found


def labels(output: Path) -> set[str]:
    return {row["row"] for row in result(output)["rows"]}


def test_a_part_joins_what_is_there_and_foreign_files_stay(tmp_path: Path) -> None:
    assert main(arguments(tmp_path, "--methods", "sam")) == 0
    folder = tmp_path / "radius" / "smoke"
    assert labels(tmp_path) == {"SAM"}
    assert result(tmp_path)["part"]
    assert "A part" in (folder / "table.md").read_text()
    (folder / "notes.txt").write_text("mine")
    (tmp_path / "radius" / "mine.txt").write_text("mine")
    assert main(arguments(tmp_path, "--methods", "lesam")) == 0
    assert labels(tmp_path) == WHOLE
    assert not result(tmp_path)["part"]
    text = (folder / "table.md").read_text()
    assert all(f"| {label} |" in text for label in WHOLE)
    assert "A part" not in text
    assert main(arguments(tmp_path, "--methods", "sam")) == 0  # again: the whole stays
    assert labels(tmp_path) == WHOLE
    assert (folder / "notes.txt").read_text() == (tmp_path / "radius" / "mine.txt").read_text() == "mine"


def test_a_result_without_rows_for_a_new_seed_gets_it_beside_the_old_one(tmp_path: Path) -> None:
    for seed in ("0", "1"):
        assert main(arguments(tmp_path, "--methods", "sam", "--seeds", seed)) == 0
    (row,) = result(tmp_path)["rows"]
    assert row["seeds"] == [0, 1]
    assert len(row["values"][ACCURACY]) == len(set(row["runs"])) == 2
    assert result(tmp_path)["seeds"] == [0, 1]


def test_parts_written_side_by_side_lose_no_row(tmp_path: Path) -> None:
    started = [
        subprocess.Popen([sys.executable, "-m", "lesam", *arguments(tmp_path, "--methods", method)])
        for method in ("sam", "lesam")
    ]
    assert [process.wait() for process in started] == [0, 0]
    assert labels(tmp_path) == WHOLE


def test_rows_whose_run_folders_are_gone_keep_their_numbers(tmp_path: Path) -> None:
    assert main(arguments(tmp_path, "--methods", "sam", "--runs", str(tmp_path / "first"))) == 0
    (before,) = result(tmp_path)["rows"]
    assert main(arguments(tmp_path, "--methods", "lesam", "--seeds", "0", "--runs", str(tmp_path / "second"))) == 0
    assert labels(tmp_path) == WHOLE  # found where they were
    shutil.rmtree(tmp_path / "first")
    assert main(arguments(tmp_path, "--methods", "lesam", "--runs", str(tmp_path / "second"))) == 0
    (after,) = [row for row in result(tmp_path)["rows"] if row["row"] == "SAM"]
    assert (after["values"], after["seeds"]) == (before["values"], before["seeds"])
    text = (tmp_path / "radius" / "smoke" / "table.md").read_text()
    assert "| SAM |" in text
    assert "no longer there" in text


def test_the_mark_of_a_diverged_run_stays_when_its_folder_is_gone(tmp_path: Path) -> None:
    lost = ("--set", "optimizer.lr=1e30", "--set", "optimizer.weight_decay=0.0")
    assert main(arguments(tmp_path, "--methods", "sam", *lost, "--runs", str(tmp_path / "first"))) == 3
    (row,) = result(tmp_path)["rows"]
    assert row["diverged"] == row["runs"]
    shutil.rmtree(tmp_path / "first")
    assert main(arguments(tmp_path, "--methods", "lesam", *lost, "--runs", str(tmp_path / "second"))) == 3
    text = (tmp_path / "radius" / "smoke" / "table.md").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("| SAM |")][:1]
    assert "‡" in line
    assert f"{row['runs'][0]} diverged" in text


def test_runs_with_other_settings_are_not_mixed_into_a_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tmp_path, "--methods", "sam")) == 0
    before = (tmp_path / "radius" / "smoke" / "result.json").read_text()
    runs = set((tmp_path / "runs").iterdir())
    assert main(arguments(tmp_path, "--methods", "lesam", "--set", "optimizer.lr=0.01")) == 2
    message = capsys.readouterr().err
    assert "optimizer.lr=0.01" in message
    assert "-o" in message
    assert (tmp_path / "radius" / "smoke" / "result.json").read_text() == before
    assert set((tmp_path / "runs").iterdir()) == runs
    # What decides no outcome is no other setting.
    assert main(arguments(tmp_path, "--methods", "lesam", "--set", "record.steps_every=3")) == 0
    assert labels(tmp_path) == WHOLE


def test_seconds_measured_of_one_network_stay_when_another_is_measured(tmp_path: Path) -> None:
    for recipe in ("cifar100-resnet18", "cifar100-wrn"):
        assert main(["reproduce", "cost", "--scale", "smoke", "-o", str(tmp_path), "--recipes", recipe]) == 0
    rows = json.loads((tmp_path / "cost" / "smoke" / "result.json").read_text())["rows"]
    assert [row["row"] for row in rows] == ["ResNet-18", "WRN-28-10"]
    table = (tmp_path / "cost" / "smoke" / "table.md").read_text()
    assert "| ResNet-18 |" in table
    assert "| WRN-28-10 |" in table
