"""The study end to end at the smoke scale: what is searched, chosen, repeated, kept and written."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from lesam.lab import paper
from lesam.lab.execution.finished import OnlyFinished
from lesam.lab.paper import planning
from lesam.lab.paper.experiment import Request
from lesam.lab.paper.study import records
from lesam.lab.paper.study.claims import claims, judged
from lesam.lab.paper.study.contest import Follower
from lesam.lab.paper.study.entries import CIFAR_CONV, DOMAINS, MLP, STAGES
from lesam.lab.paper.study.groups import NEAR, STUDY, groups
from lesam.lab.paper.study.quantities import ACCURACY
from lesam.lab.paper.study.schedule import _Stage, contest_runs, export
from lesam.lab.paper.study.tables import StageTables
from lesam.lab.sweeps.tuning import SEARCH_SEEDS
from tests.lab.running import smoke, trained


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Request, Path]:
    folder = tmp_path_factory.mktemp("study")
    request = Request(
        scale="smoke", seeds=(0, 1), runs=folder / "runs", recipes=("mnist1d-mlp",), progress=lambda text: None
    )
    return request, paper.reproduce("study", request, folder) or folder


def test_trials_come_first_and_methods_inherit_the_bases_setting(finished: tuple[Request, Path]):
    request, _ = finished
    runs = list(contest_runs(STUDY, request))
    base = [run for run in runs if run.entry.method == "adamw" and run.part == "search"]
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
    sam = [run for run in runs if run.name == "SAM"]
    assert all(run.entry.fixed[: len(best)] == best for run in sam)
    assert {run.config.seed for run in sam if run.part == "repeat"} == {0, 1}


def test_every_number_of_the_table_is_that_of_the_run_folders(finished: tuple[Request, Path]):
    request, folder = finished
    accuracies = []
    for run in contest_runs(STUDY, request):
        if run.part == "repeat" and run.name == "SAM":
            file = request.runs / run.config.folder_name / "summary.json"
            accuracies.append(100 * json.loads(file.read_text())["last"]["test_accuracy"])
    mean = sum(accuracies) / len(accuracies)
    (row,) = (line for line in (folder / "table.md").read_text().splitlines() if line.startswith("| SAM | 2 | rho"))
    assert f"| {mean:.2f} ± " in row


def test_records_survive_without_run_folders_and_parts_join(finished: tuple[Request, Path], tmp_path: Path):
    request, _ = finished
    first = export(STUDY, Request(scale="smoke", seeds=(0,), runs=request.runs, recipes=request.recipes), tmp_path)
    both = export(STUDY, request, tmp_path)
    assert len(both) == len(first) + 3  # a second repetition of two entries and a follower
    assert sorted(records.read(tmp_path), key=repr) == sorted(both, key=repr)
    again = StageTables(MLP, records.read(tmp_path), "smoke")
    assert again.results() == StageTables(MLP, both, "smoke").results()
    assert all(one.commit != "unknown" for one in both)


def test_a_run_with_a_record_is_not_trained_again(finished: tuple[Request, Path], tmp_path: Path):
    """Only what has no record is planned, choices follow from recorded trials, and the tables are the same."""
    request, folder = finished
    export(STUDY, request, tmp_path / "results" / "study")
    elsewhere = dataclasses.replace(request, runs=tmp_path / "runs", records=tmp_path / "results")
    study = paper.find("study")
    assert all(run.recorded for run in study.plan(elsewhere))
    again = paper.reproduce("study", elsewhere, tmp_path / "out")
    assert again is not None
    assert not (tmp_path / "runs").exists()
    tables = [(one / "table.md").read_text().partition("## ")[2] for one in (folder, again)]
    assert tables[0] == tables[1]
    more = dataclasses.replace(elsewhere, seeds=(0, 1, 2))
    missing = [(run.row, run.config.seed) for run in study.plan(more) if not run.recorded]
    assert missing == [("AdamW", 2), ("SAM", 2), ("SAM, twice the radius", 2)]
    lines = list(planning.lines(study, more, tmp_path / "out", paper.plan(study, more)))
    assert lines[0].endswith("3 runs, 3 of them to be trained")
    assert lines[1] == f"# {len(study.plan(elsewhere))} further runs have a record in {tmp_path / 'results'}"
    assert f"--records {tmp_path / 'results'}" in lines[-1]


def test_what_has_records_is_reported_before_the_rest_is_trained(finished: tuple[Request, Path], tmp_path: Path):
    """A part without repetitions is trained, an earlier result keeps its place, and all recorded seeds are shown."""
    request, folder = finished
    every = export(STUDY, request, tmp_path / "study")
    trials = [one for one in every if one.entry != "SAM" or one.part != "search"]
    records.write(trials, tmp_path / "study")  # only SAM's trials are missing
    elsewhere = dataclasses.replace(request, runs=tmp_path / "runs", records=tmp_path)
    for executor in (OnlyFinished(runs=elsewhere.runs), None):
        found = paper.reproduce("study", elsewhere, tmp_path / "out", executor)
        assert found is not None
        result = json.loads((found / "result.json").read_text())
        assert result["seeds"] == [0, 1]
        assert result["superseded"] == []
        assert "| AdamW | 1 | lr" in (found / "table.md").read_text()
    trained = [path.name for path in (tmp_path / "runs").iterdir()]
    assert len(trained) == 4
    assert all("-sam-seed100" in name for name in trained)
    records.write(every, tmp_path / "study")
    last = paper.reproduce("study", elsewhere, tmp_path / "out")
    assert last is not None
    result = json.loads((last / "result.json").read_text())
    assert result["superseded"] == []
    assert len(result["cells"]) == 2  # the trials of SAM, whose folders are there
    tables = [(one / "table.md").read_text().partition("## ")[2] for one in (folder, last)]
    assert tables[0] == tables[1]


def test_a_record_without_the_attacks_of_a_stage_is_not_enough(finished: tuple[Request, Path], tmp_path: Path):
    request, _ = finished
    every = export(STUDY, request, tmp_path / "study")
    repeated = next(one for one in every if one.part == "repeat")
    known = records.known(tmp_path)[repeated.fingerprint]
    run = next(run for run in contest_runs(STUDY, request) if run.config.fingerprint == repeated.fingerprint)
    assert dataclasses.replace(run, known=known).record(tmp_path / "no runs") == repeated
    records.write([dataclasses.replace(one, attacked={"linf-1": 0.5}) for one in every], tmp_path / "price")
    assert records.known(tmp_path)[repeated.fingerprint].attacked == {"linf-1": 0.5}
    assert not dataclasses.replace(run, part="track").answered_by(known)  # it has no curve
    attacked = dataclasses.replace(MLP, attacks=("linf-1", "l2-32"))
    contest = dataclasses.replace(STUDY, stages=(attacked,), groups=lambda stage, scale: groups(MLP, scale))
    asked = dataclasses.replace(request, records=tmp_path)
    assert all(
        (run.known is None) == (run.part == "repeat" and not run.name.endswith("radius"))
        for run in contest_runs(contest, asked)
    )


def test_a_folder_without_records_is_refused(tmp_path: Path):
    request = Request(scale="smoke", runs=tmp_path, records=tmp_path).of(paper.find("study"))
    with pytest.raises(ValueError, match="has no records of a contest"):
        paper.plan(paper.find("study"), request)


def test_a_damaged_record_is_named(tmp_path: Path):
    (tmp_path / "mnist1d-mlp.jsonl").write_text('{"entry": "SAM"}\n')
    with pytest.raises(ValueError, match=r"mnist1d-mlp\.jsonl, line 1"):
        records.read(tmp_path)


def test_a_follower_repeats_a_multiple_of_the_leaders_choice(finished: tuple[Request, Path]):
    request, _ = finished
    runs = list(contest_runs(STUDY, request))
    (chosen,) = {run.setting for run in runs if run.name == "SAM" and run.part == "repeat"}
    ((name, value),) = (item.split("=") for item in chosen)
    twice = [run for run in runs if run.name == "SAM, twice the radius"]
    assert {run.setting for run in twice} == {(f"{name}={2 * float(value):g}",)}
    assert [(run.part, run.config.seed) for run in twice] == [("repeat", 0), ("repeat", 1)]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.recipe)
def test_every_entry_has_the_same_number_of_trials_and_a_name_of_its_own(stage):
    entries = [entry for group in groups(stage, "small") for entry in group.entries]
    competing = STUDY.names(stage, "small")
    assert {len(entry.settings) for entry in entries if entry.name in competing} == {5}
    assert len({entry.name for entry in entries}) == len(entries)
    configs = {entry.config(entry.settings[0], scale="small", seed=0).fingerprint for entry in entries}
    assert len(configs) == len(entries)
    leaders = [follower.leader for group in groups(stage, "small") for follower in group.followers]
    assert all(leader in entries for leader in leaders)


def test_neighbours_span_the_factor_of_the_claim():
    assert NEAR[1] / NEAR[0] == pytest.approx(1.69)
    half = Follower(name="", leader=MLP.entry("lesam"), factor=0.5)
    assert half.setting(("optimizer.sigma=0.4",)) == ("optimizer.sigma=0.2",)


def test_claims_are_judged_by_paired_differences():
    seeds = range(20)
    jitter = {seed: 0.1 * (-1) ** seed for seed in seeds}
    scores = {
        "AdamW": {seed: 60.0 + seed for seed in seeds},
        "SAM": {seed: 65.0 + seed + jitter[seed] for seed in seeds},
        "LE-SAM": {seed: 65.1 + seed for seed in seeds},
        "LE-SAM+": {seed: 67.0 + seed - jitter[seed] for seed in seeds},
    }
    verdicts = {one.claim.text: one.verdict for one in judged(MLP, {ACCURACY: scores})}
    assert verdicts == {
        "SAM beats AdamW": "holds",
        "LE-SAM beats AdamW": "holds",
        "LE-SAM beats SAM": "holds",
        "LE-SAM+ beats SAM": "holds",
        "LE-SAM+ beats LE-SAM": "holds",
    }
    scores["LE-SAM"] = {seed: 65.05 + seed for seed in seeds}
    verdicts = {one.claim.text: one.verdict for one in judged(MLP, {ACCURACY: scores})}
    assert verdicts["LE-SAM beats SAM"] == "does not hold"  # surely below a fifth of SAM's gain of 5


def test_a_claim_with_a_tolerance_holds_where_little_is_lost():
    """SAM's gain is 2; a neighbour that costs 0.02 points costs less than a tenth of it, one that costs 1 does not."""
    seeds = range(20)
    jitter = [0.05 * (-1) ** (seed // 2) for seed in seeds]
    scores = {
        "AdamW": {seed: 60.0 + seed for seed in seeds},
        "SAM": {seed: 62.0 + seed for seed in seeds},
        "LE-SAM": {seed: 63.0 + seed for seed in seeds},
        "LE-SAM, 0.77 times the budget": {seed: 62.98 + seed + jitter[seed] for seed in seeds},
        "LE-SAM, 1.3 times the budget": {seed: 62.0 + seed + jitter[seed] for seed in seeds},
    }
    found = {one.claim.ours: one for one in judged(MLP, {ACCURACY: scores}) if one.claim.margin}
    little, much = found["LE-SAM, 0.77 times the budget"], found["LE-SAM, 1.3 times the budget"]
    assert (little.verdict, much.verdict) == ("holds", "does not hold")
    assert little.difference.spread.mean == pytest.approx(-0.02)  # the table shows what was lost, not what was allowed


def test_a_fifth_of_sams_gain_is_that_on_the_same_labels_and_never_below_nothing():
    seeds = range(20)
    wave = [0.2 * (-1) ** seed for seed in seeds]  # intervals of about 0.2 to either side
    scores = {
        "AdamW": {seed: 60.0 for seed in seeds},
        "SAM": {seed: 60.5 for seed in seeds},
        "LE-SAM": {seed: 60.55 + wave[seed] for seed in seeds},
        "AdamW, 20 % wrong labels": {seed: 50.0 for seed in seeds},
        "SAM, 20 % wrong labels": {seed: 55.0 for seed in seeds},
        "LE-SAM, 20 % wrong labels": {seed: 55.05 + wave[seed] for seed in seeds},
    }
    verdicts = {one.claim.text: one.verdict for one in judged(MLP, {ACCURACY: scores})}
    assert verdicts["LE-SAM beats SAM"] == "undecided"  # a fifth of the gain is 0.1
    assert verdicts["LE-SAM beats SAM under wrong labels"] == "does not hold"  # there it is 1
    scores["SAM"] = {seed: 55.0 for seed in seeds}
    scores["LE-SAM"] = {seed: 54.5 + wave[seed] for seed in seeds}
    verdicts = {one.claim.text: one.verdict for one in judged(MLP, {ACCURACY: scores})}
    assert verdicts["LE-SAM beats SAM"] == "does not hold"  # surely below 0, if not below a fifth of -5


def test_p_values_count_the_claims_that_have_not_run():
    seeds = range(20)
    scores = {
        "AdamW": {seed: 60.0 + 0.3 * (seed % 5) for seed in seeds},
        "SAM": {seed: 60.2 + 0.3 * ((seed + 1) % 4) for seed in seeds},
    }
    (one,) = judged(MLP, {ACCURACY: scores})
    assert one.p == pytest.approx(min(1.0, one.difference.p * len(claims(MLP))))


def test_more_seeds_than_planned_can_be_asked_for():
    request = Request(scale="smoke", seeds=tuple(range(53)), runs=Path("nowhere"), recipes=("mnist1d-mlp",))
    assert len(_Stage(STUDY, MLP, request, {}).fresh()) == 53
    assert len(_Stage(STUDY, MLP, dataclasses.replace(request, seeds=STUDY.seeds), {}).fresh()) == MLP.repeats


def test_the_longer_base_has_twice_the_epochs_of_every_scale():
    for scale, epochs in (("small", 50), ("paper", 400)):
        assert CIFAR_CONV.twice_the_epochs(scale).fixed == (f"schedule.epochs={epochs}",)


@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_trials_on_domains_hold_a_part_out_and_repetitions_choose_their_own_length(scale: str):
    """A run that holds a part of its domain out does not score the other domains, so no choice can see them."""
    for entry in (entry for group in groups(DOMAINS, scale) for entry in group.entries):
        for _, config in entry.trials(scale=scale, seeds=SEARCH_SEEDS):
            assert (config.task.two_passes, config.data.options["validation"]) == (False, 0.2)
        repeated = entry.config(entry.settings[0], scale=scale, seed=0)
        assert repeated.task.two_passes
        assert "validation" not in repeated.data.options
    assert DOMAINS.twice_the_epochs("small").fixed == ("schedule.steps=1600",)


def test_a_trial_without_a_validation_accuracy_is_refused_and_a_repetition_is_not(tmp_path: Path):
    run = trained(smoke("mnist1d-mlp", "data.options.validation=0", method="sam"), tmp_path)
    summary = run.summary()
    assert summary is not None
    assert records.record("SAM", "repeat", (), run, summary).score == 100 * summary["last"]["test_accuracy"]
    with pytest.raises(ValueError, match="a search needs a validation split"):
        records.record("SAM", "search", (), run, summary)


@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_a_part_of_the_study_has_the_search_of_the_base_and_no_strange_recipe(scale: str, tmp_path: Path):
    study = paper.find("study")
    request = Request(scale=scale, runs=tmp_path, recipes=("mnist1d-mlp",), methods=("sam",)).of(study)
    assert {run.row for run in study.plan(request)} == {"AdamW"}
    with pytest.raises(ValueError, match=r"the study has no digits; it has mnist1d-mlp"):
        study.plan(dataclasses.replace(request, recipes=("digits",)))


def test_the_price_of_a_late_switch_is_that_of_all_epochs(tmp_path: Path):
    config = smoke("mnist1d-mlp", "schedule.switch_at=2", "data.options.validation=0.2", method="sam")
    run = trained(config, tmp_path)
    summary = run.summary()
    assert summary is not None
    assert summary["last"]["passes"] == 2
    kept = records.record("SAM, late", "repeat", (), run, summary)
    assert kept.last["passes"] == pytest.approx((1 + 1 + 2) / 3, rel=1e-5)


def test_a_part_does_not_repeat_the_base(finished: tuple[Request, Path]):
    request, _ = finished
    runs = list(contest_runs(STUDY, dataclasses.replace(request, methods=("sam",))))
    assert {run.name for run in runs if run.part == "repeat"} == {"SAM", "SAM, twice the radius"}
    assert {run.name for run in runs if run.part == "search"} == {"AdamW", "SAM"}


def test_a_run_of_another_setting_takes_the_place_of_the_old_one(finished: tuple[Request, Path], tmp_path: Path):
    request, _ = finished
    every = export(STUDY, request, tmp_path)
    old = [dataclasses.replace(one, fingerprint=f"old{one.fingerprint}", setting=("optimizer.rho=9",)) for one in every]
    found = records.merged(old, every)
    assert [one for one in found if one.part == "repeat"] == [one for one in every if one.part == "repeat"]


def test_the_same_run_twice_is_refused(finished: tuple[Request, Path], tmp_path: Path):
    request, _ = finished
    export(STUDY, request, tmp_path)
    file = tmp_path / "mnist1d-mlp.jsonl"
    line = next(line for line in file.read_text().splitlines() if '"repeat"' in line)
    file.write_text(file.read_text() + line.replace('"fingerprint":"', '"fingerprint":"other') + "\n")
    with pytest.raises(ValueError, match="is a second run of"):
        records.read(tmp_path)
    file.write_text(line.replace('"test_accuracy":', '"tested":') + "\n")
    with pytest.raises(ValueError, match="line 1 is no record of a run: no test_accuracy"):
        records.read(tmp_path)


def test_claims_name_entries_that_compete():
    found = claims(MLP)
    assert len({claim.text for claim in found}) == len(found) > 50
    named = {name for claim in found for name in (claim.ours, claim.theirs) if isinstance(name, str)}
    assert named <= set(STUDY.names(MLP, "small"))
    assert "LE-SAM, 1.3 times the budget" in named
