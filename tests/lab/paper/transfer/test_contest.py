"""The contest of fine-tuning: who starts from what, who is searched how, and the tables from the records."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lesam.lab.config.text import override
from lesam.lab.execution.in_process import InProcess
from lesam.lab.paper import find
from lesam.lab.paper.experiment import Request
from lesam.lab.paper.running import train_all
from lesam.lab.paper.study import records
from lesam.lab.paper.study.records import Record
from lesam.lab.paper.transfer import contest, tables
from lesam.lab.runs.folder import RunFolder
from lesam.lab.sweeps.tuning import SEARCH_SEEDS

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Request:
    """Everything at the smoke scale, trained in the order of the plan."""
    request = Request(scale="smoke", seeds=(0, 1), runs=tmp_path_factory.mktemp("runs"), progress=lambda text: None)
    experiment, done = find("fine-tuning"), set()
    while new := [run for run in experiment.plan(request) if run.config.fingerprint not in done]:
        first = min(run.order for run in new)
        coming = [run for run in new if run.order == first]
        done |= {run.config.fingerprint for run in coming}
        _, failures = train_all(coming, request.runs, InProcess(runs=request.runs))
        assert not failures
    return request


def test_every_run_starts_from_the_network_of_its_seed(finished: Request):
    runs = [run for run in contest.transfer_runs(finished) if run.name != contest.PRETRAINED]
    assert {run.config.seed for run in runs} == {*SEARCH_SEEDS, 0, 1}
    for run in runs:
        origin = RunFolder.of(run.pretrained, finished.runs)
        assert run.pretrained.seed == run.config.seed
        assert Path(run.config.model.weights_file).is_relative_to(origin.path)


def test_repetitions_of_an_entry_are_repetitions_though_their_weights_differ(finished: Request):
    runs = [run for run in contest.transfer_runs(finished) if run.part == "repeat" and run.name == "LE-SAM"]
    assert len({run.config.model.options["weights"] for run in runs}) == len(runs) == 2
    assert len({run.config.cell for run in runs}) == 1
    other = override(runs[0].config, ["model.options.width=8"])
    assert other.cell != runs[0].config.cell


def test_followers_inherit_the_setting_of_the_base(finished: Request):
    runs = list(contest.transfer_runs(finished))
    (base,) = {run.setting for run in runs if run.name == contest.FINE_TUNED.name and run.part == "repeat"}
    followers = [run for run in runs if run.name == "LE-SAM"]
    assert followers
    for run in followers:
        assert override(run.config, base) == run.config


def test_forgetting_is_part_of_every_repetition(finished: Request, tmp_path: Path):
    found = contest.export(finished, tmp_path)
    repeated = [one for one in found if one.part == "repeat" and one.entry != contest.PRETRAINED]
    assert len(repeated) == 4
    for one in repeated:
        before = next(o for o in found if o.entry == contest.PRETRAINED and o.seed == one.seed and o.part == "repeat")
        assert one.last["old_accuracy_before"] == pytest.approx(before.last["test_accuracy"])
    assert records.read(tmp_path) == contest.export(finished, tmp_path)


def test_a_part_searches_the_base_and_does_not_repeat_it(finished: Request):
    runs = list(contest.transfer_runs(dataclasses.replace(finished, methods=("lesam",))))
    parts = {(run.name, run.part) for run in runs}
    assert (contest.FINE_TUNED.name, "search") in parts
    assert (contest.FINE_TUNED.name, "repeat") not in parts
    assert ("LE-SAM", "repeat") in parts
    with pytest.raises(ValueError, match="need others"):
        list(contest.transfer_runs(dataclasses.replace(finished, seeds=SEARCH_SEEDS)))


def record(
    entry: str, seed: int, new: float, old: float | None, part="repeat", setting=("optimizer.rho=0.1",)
) -> Record:
    last = {"test_accuracy": new, "validation_accuracy": new, "passes": 2.0, "moved": 0.1}
    last |= {} if old is None else {"old_accuracy_before": 0.5, "old_accuracy": old}
    return Record(
        entry=entry,
        recipe="cifar100-finetuning",
        part=part,
        setting=setting,
        seed=seed,
        fingerprint="",
        commit="",
        seconds=1.0,
        diverged=False,
        last=last,
    )


def test_the_tables():
    found = [record("SGD", seed, new, 0.3) for seed, new in enumerate((0.30, 0.31, 0.32))]
    found += [record("SAM", seed, new, 0.4) for seed, new in enumerate((0.31, 0.33, 0.35))]
    found += [record("SGD, from scratch", seed, 0.2, None) for seed in range(3)]
    made = tables.tables(found)
    rows = {row[0]: row[1:] for row in made[tables.RESULTS]}
    assert rows["SAM"][3:6] == ("33.00 ± 2.00", "40.00 ± 0.00", "10.00 ± 0.00")
    assert rows["SGD, from scratch"][3:6] == ("20.00 ± 0.00", "", "")
    differences = {row[0]: row[1:] for row in made[tables.DIFFERENCES]}
    assert differences["accuracy on the new task: SAM minus SGD"][0] == "+2.00"
    assert differences["forgotten of the old task: SAM minus SGD"][0] == "-10.00"
    # Three comparisons: t(2) at 1 - 0.05 / 6 is 7.6488, times 1 / sqrt(3).
    assert differences["accuracy on the new task: SAM minus SGD"][1] == "-2.42 to +6.42"


def test_a_chosen_setting_at_the_edge_is_marked():
    rho = [(f"optimizer.rho={value}",) for value in ("0.05", "0.1", "0.2", "0.4", "0.8")]
    trials = [record("SAM", 1000, 0.3, None, "search", setting) for setting in rho]
    assert tables.tables(trials)[tables.SEARCHES][1] == ("SAM", "rho 0.05", "30.00", "", "10.00")
    for setting, mark in ((rho[0], "*"), (rho[2], "")):
        made = tables.tables([*trials, record("SAM", 0, 0.3, 0.3, setting=setting)])
        assert made[tables.RESULTS][1][2] == f"rho {setting[0].partition('=')[2]}{mark}"


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="documents are not part of an installed package")
def test_the_committed_document_has_the_numbers_of_the_committed_records():
    found = records.read(ROOT / "results" / "fine-tuning")
    page = (ROOT / "docs" / "fine-tuning.md").read_text()
    for heading in (tables.RESULTS, tables.DIFFERENCES, tables.SEARCHES):
        assert f"<!-- table: {heading} -->" in page
    assert tables.filled(page, found) == page
    with pytest.raises(ValueError, match="no table 'colours'"):
        tables.filled("<!-- table: colours -->\n<!-- end of table -->", found)
