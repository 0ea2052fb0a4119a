"""The document on benchmarks says what the records say, and nothing that somebody typed."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").exists(), reason="benchmarks are not part of a package")


def tables(folder: Path) -> dict[str, Any]:
    return runpy.run_path(str(folder / "tables.py"))


def test_the_study_judges_cost_by_the_record() -> None:
    """LE-SAM beside SAM: the mean over turns and its interval, which ends below 1.02 where the claim holds."""
    found = json.loads((ROOT / "benchmarks/results/price.json").read_text())["results"]["LE-SAM / SAM by turns"]
    low, high = found["interval"]
    assert high < 1.02
    said = " ".join((ROOT / "docs/study.md").read_text().split())
    turns = len(found["ratios"])
    assert f"{found['mean']:.4f} times that of SAM (95 % interval {low:.4f} to {high:.4f}, {turns} turns;" in said


def test_the_document_is_what_the_make_target_writes():
    assert (ROOT / "docs" / "benchmarks.md").read_text() == tables(ROOT / "benchmarks")["document"]()


def test_every_record_is_in_the_table():
    files = {file.stem for file in (ROOT / "benchmarks" / "results").glob("*.json")}
    assert files == set(tables(ROOT / "benchmarks")["FILES"])


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks"))


def change(file: Path, ratio: float) -> None:
    record = json.loads(file.read_text())
    record["results"]["speed_of_lab_against"]["script"] = ratio
    file.write_text(json.dumps(record))


@pytest.mark.parametrize(("reached", "marked"), [(0.99, True), (1.0, False)])
def test_a_target_that_is_missed_has_a_mark(copied: Path, reached: float, marked: bool):
    change(copied / "results" / "train.json", reached)
    text, _ = tables(copied)["terminal"]()
    (line,) = (line for line in text.splitlines() if line.startswith("train") and "torchvision" in line)
    assert f"≥ 1.00   {reached:.2f}" in line
    assert ("✗" in line) == marked


def test_the_command_fails_where_a_target_is_missed(copied: Path):
    change(copied / "results" / "train.json", 0.5)
    assert tables(copied)["terminal"]()[1] is False
