"""The demonstration: equal effort for every method, nothing chosen on the test split, a table and a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from lesam.lab.cli import main
from lesam.lab.execution.local import Pool
from lesam.lab.runs.folder import RunFolder, find_runs
from lesam.lab.runs.statistics import Spread
from lesam.lab.sweeps import compare


def test_every_method_gets_the_same_number_of_settings() -> None:
    assert set(compare.SETTINGS) == {"sgd", "sam", "lesam", "lesamplus"}
    assert len({len(settings) for settings in compare.SETTINGS.values()}) == 1


def test_settings_are_chosen_on_validation_and_repeated_with_fresh_seeds(tmp_path: Path) -> None:
    results = compare.compare(
        Pool(runs=tmp_path, jobs=2), runs=tmp_path, seeds=(0, 1), scale="smoke", methods=("sgd", "lesam")
    )
    assert [result.method for result in results] == ["sgd", "lesam"]
    searched = [run for run in find_runs([tmp_path]) if run.config().seed == compare.SEARCH_SEED]
    for result in results:
        tried = [run.summary() for run in searched if run.config().method == result.method]
        assert len(tried) == len(compare.SETTINGS[result.method])
        assert result.validation == max(summary["last"]["validation_accuracy"] for summary in tried if summary)
        rows = [RunFolder(path).metrics()[-1] for path in result.runs]
        assert [RunFolder(path).config().seed for path in result.runs] == [0, 1]
        assert result.test == Spread.of([row["test_accuracy"] for row in rows])
        assert result.passes == {"sgd": 1, "lesam": 2}[result.method]


def test_the_command_ends_with_a_table_a_picture_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--scale", "smoke", "--seeds", "0", "--jobs", "2", "-o", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    for title in ("SGD", "SAM", "LE-SAM", "LE-SAM+"):
        assert f"| {title} |" in shown
    assert (tmp_path / "out" / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "compare.md").read_text() in shown
    report = tmp_path / "out" / "report.html"
    assert report.as_uri() in shown
    assert report.read_text().count("LE-SAM+") > 3


def test_further_seeds_join_the_earlier_ones(tmp_path: Path) -> None:
    (first,) = compare.compare(Pool(runs=tmp_path, jobs=1), runs=tmp_path, seeds=(0,), scale="smoke", methods=("sgd",))
    (both,) = compare.compare(Pool(runs=tmp_path, jobs=1), runs=tmp_path, seeds=(1,), scale="smoke", methods=("sgd",))
    assert (first.test.n, both.test.n) == (1, 2)
    assert set(first.runs) < set(both.runs)


def test_no_seed_is_refused_before_the_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--scale", "smoke", "-o", str(tmp_path / "out"), "--seeds"]) == 2
    assert "at least one seed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
