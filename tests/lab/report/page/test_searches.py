"""The history of a search, in its file and on the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from lesam.lab.cli import main
from lesam.lab.execution.jobs import Event
from lesam.lab.report.live.folder import WatchedFolder
from lesam.lab.report.page.content import content
from lesam.lab.runs.folder import find_runs
from lesam.lab.sweeps.history import beside, file_of
from tests.lab.sweeps.searching import find


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, list[list[str]]]:
    """Two settings with two seeds each, and what the file said of the first trial whenever a run ended."""
    runs = tmp_path_factory.mktemp("searched")
    seen: list[list[str]] = []

    def look(event: Event) -> None:
        if event.kind == "done":
            (first, *_) = json.loads(file_of("mine", runs).read_text())["trials"]
            seen.append([first["state"], *first["runs"]])

    study = find(f"sqlite:///{runs / 'study.sqlite3'}", runs, epochs=2, trials=2, seeds=[0, 1], progress=look)
    return runs, study, seen


def shown(runs: Path) -> dict[str, Any]:
    found = find_runs([runs])
    return content(found, sources=[runs], searches=beside(run.path for run in found))


def test_the_file_follows_the_study(searched: Any) -> None:
    runs, study, seen = searched
    assert seen == [["running", "0"], *[["finished", "0", "1"]] * 3]
    history = json.loads(file_of("mine", runs).read_text())
    assert (history["study"], history["seeds"]) == ("mine", [0, 1])
    for trial, kept in zip(study.trials, history["trials"], strict=True):
        assert trial.state == TrialState.COMPLETE
        assert (kept["number"], kept["setting"], kept["value"]) == (trial.number, trial.params, trial.value)
        summaries = [json.loads((runs / run["folder"] / "summary.json").read_text()) for run in kept["runs"].values()]
        assert [summary["seed"] for summary in summaries] == [0, 1]
        assert [run["accuracy"] for run in kept["runs"].values()] == [
            summary["last"]["validation_accuracy"] for summary in summaries
        ]
        assert {run["epochs"] for run in kept["runs"].values()} == {2}
        assert kept["started"] <= kept["ended"]


def test_the_page_has_every_trial(searched: Any) -> None:
    runs, study, _ = searched
    made = shown(runs)
    (section,) = (section for section in made["sections"] if section["id"] == "search")
    (table,) = section["tables"]
    titles = [column["title"] for column in table["columns"]]
    rows = [dict(zip(titles, row, strict=True)) for row in table["rows"]]
    assert [row["trial"]["value"] for row in rows] == [0, 1]
    for row, trial in zip(rows, study.trials, strict=True):
        assert row["optimizer.sigma"]["value"] == pytest.approx(trial.params["optimizer.sigma"], rel=1e-6)
        assert row["validation accuracy (%)"]["value"] == pytest.approx(trial.value * 100, rel=1e-6)
        assert (row["runs"]["value"], row["epochs"]["value"], row["state"]["text"]) == (2, 4, "finished")


def test_the_command_writes_it(searched: Any, tmp_path: Path) -> None:
    runs, _, _ = searched
    assert main(["report", str(runs), "-o", str(tmp_path / "report.html")]) == 0
    assert "Search mine" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("text", ["{", "[]", '{"study": "s", "seeds": [], "trials": [{}]}', '{"trials": 1}', "null"])
def test_a_damaged_history_is_named_and_the_runs_are_shown(searched: Any, text: str) -> None:
    runs, _, _ = searched
    damaged = runs / "searches" / "another.json"
    damaged.write_text(text)
    try:
        made = shown(runs)
    finally:
        damaged.unlink()
    assert [problem for problem in made["problems"] if str(damaged) in problem]
    assert len([section for section in made["sections"] if section["id"] == "search"]) == 1
    assert made["groups"]


def test_a_watched_folder_shows_changes_and_nothing_behind_links(searched: Any, tmp_path: Path) -> None:
    runs, _, _ = searched
    link = tmp_path / "watched" / "searches"
    link.parent.mkdir()
    for run in find_runs([runs]):
        run.path.rename(link.parent / run.path.name)
    try:
        link.symlink_to(runs / "searches")
        made = WatchedFolder(link.parent).current()
        assert [problem for problem in made.content["problems"] if "leads out" in problem]
        assert "search" not in [section["id"] for section in made.content["sections"]]
        link.unlink()
        link.mkdir()
        watched = WatchedFolder(link.parent)
        before = watched.current().tag
        (link / "mine.json").write_text(file_of("mine", runs).read_text())
        watched._looked = float("-inf")
        assert watched.current().tag != before
    finally:
        for run in find_runs([link.parent]):
            run.path.rename(runs / run.path.name)
