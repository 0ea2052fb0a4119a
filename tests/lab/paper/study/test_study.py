"""The study end to end at the smoke scale: what is searched, chosen, repeated, kept and written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lesam.lab import paper
from lesam.lab.paper.experiment import Request
from lesam.lab.paper.study import records
from lesam.lab.paper.study.claims import claims, judged
from lesam.lab.paper.study.entries import MLP, STAGES, groups
from lesam.lab.paper.study.schedule import export, study_runs
from lesam.lab.paper.study.tables import StageTables
from lesam.lab.sweeps.tuning import SEARCH_SEEDS


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Request, Path]:
    folder = tmp_path_factory.mktemp("study")
    request = Request(
        scale="smoke", seeds=(0, 1), runs=folder / "runs", recipes=("mnist1d-mlp",), progress=lambda text: None
    )
    return request, paper.reproduce("study", request, folder) or folder


def test_trials_come_first_and_methods_inherit_the_bases_setting(finished: tuple[Request, Path]):
    request, _ = finished
    runs = list(study_runs(request))
    base = [run for run in runs if run.entry.method == "adamw" and run.stage == "search"]
    assert len(base) == 2 * len(SEARCH_SEEDS)
    scores = {
        run.setting: [
            one.record(request.runs).score  # type: ignore[union-attr]
            for one in base
            if one.setting == run.setting
        ]
        for run in base
    }
    best = max(scores, key=lambda setting: sum(scores[setting]))
    sam = [run for run in runs if run.entry.method == "sam"]
    assert all(run.entry.fixed[: len(best)] == best for run in sam)
    assert {run.config.seed for run in sam if run.stage == "repeat"} == {0, 1}


def test_every_number_of_the_table_is_that_of_the_run_folders(finished: tuple[Request, Path]):
    request, folder = finished
    accuracies = []
    for run in study_runs(request):
        if run.stage == "repeat" and run.entry.method == "sam":
            file = request.runs / run.config.folder_name / "summary.json"
            accuracies.append(100 * json.loads(file.read_text())["last"]["test_accuracy"])
    mean = sum(accuracies) / len(accuracies)
    (row,) = (line for line in (folder / "table.md").read_text().splitlines() if line.startswith("| SAM | 2 |"))
    assert f"| {mean:.2f} ± " in row


def test_records_survive_without_run_folders_and_parts_join(finished: tuple[Request, Path], tmp_path: Path):
    request, _ = finished
    first = export(Request(scale="smoke", seeds=(0,), runs=request.runs, recipes=request.recipes), tmp_path)
    both = export(request, tmp_path)
    assert len(both) == len(first) + 2  # a second repetition of two entries
    assert sorted(records.read(tmp_path), key=repr) == sorted(both, key=repr)
    again = StageTables(MLP, records.read(tmp_path), "smoke")
    assert again.results() == StageTables(MLP, both, "smoke").results()
    assert all(one.commit != "unknown" for one in both)


def test_a_damaged_record_is_named(tmp_path: Path):
    (tmp_path / "mnist1d-mlp.jsonl").write_text('{"entry": "SAM"}\n')
    with pytest.raises(ValueError, match=r"mnist1d-mlp\.jsonl, line 1"):
        records.read(tmp_path)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.recipe)
def test_every_entry_has_the_same_number_of_trials_and_a_name_of_its_own(stage):
    entries = [entry for group in groups(stage, "small") for entry in group]
    assert {len(entry.settings) for entry in entries} == {5}
    assert len({entry.name for entry in entries}) == len(entries)
    configs = {entry.config(entry.settings[0], scale="small", seed=0).fingerprint for entry in entries}
    assert len(configs) == len(entries)


def test_claims_are_judged_by_paired_differences():
    seeds = range(20)
    jitter = {seed: 0.1 * (-1) ** seed for seed in seeds}
    scores = {
        "AdamW": {seed: 60.0 + seed for seed in seeds},
        "SAM": {seed: 65.0 + seed + jitter[seed] for seed in seeds},
        "LE-SAM": {seed: 65.1 + seed for seed in seeds},
        "LE-SAM+": {seed: 67.0 + seed - jitter[seed] for seed in seeds},
    }
    verdicts = {one.claim.text: one.verdict for one in judged(MLP, scores)}
    assert verdicts == {
        "SAM beats AdamW": "holds",
        "LE-SAM beats AdamW": "holds",
        "LE-SAM beats SAM": "holds",
        "LE-SAM+ beats SAM": "holds",
        "LE-SAM+ beats LE-SAM": "holds",
    }
    scores["LE-SAM"] = {seed: 65.05 + seed for seed in seeds}
    verdicts = {one.claim.text: one.verdict for one in judged(MLP, scores)}
    assert verdicts["LE-SAM beats SAM"] == "does not hold"  # surely below a fifth of SAM's gain of 5


def test_claims_name_entries_that_compete():
    names = {entry.name for group in groups(MLP, "small") for entry in group}
    assert len(claims(MLP)) > 25
    assert {name for claim in claims(MLP) for name in (claim.ours, claim.theirs)} <= names
