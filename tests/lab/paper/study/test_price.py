"""The price: who competes is searched alike and shares the study's runs, and shares and verdicts are arithmetic."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from lesam.lab import paper
from lesam.lab.config.optimizer import title
from lesam.lab.paper.experiment import Request
from lesam.lab.paper.study import records
from lesam.lab.paper.study.groups import STUDY
from lesam.lab.paper.study.price import CONVOLUTIONAL, DECIDING, PRICE
from lesam.lab.paper.study.price_figures import figures
from lesam.lab.paper.study.price_tables import Frontier, tables
from lesam.lab.paper.study.records import Record
from lesam.lab.paper.study.schedule import ContestRun, contest_runs
from lesam.lab.paper.study.timing import timed
from lesam.lab.sweeps.tuning import Entry
from tests.lab.running import smoke

MLP, _, _, DIGITS, _ = PRICE.stages
RESULTS = Path(__file__).parents[4] / "results"
JITTER = [0.01 * (-1) ** seed for seed in range(10)]


def entries(contest, stage) -> dict[str, Entry]:
    return {entry.name: entry for group in contest.groups(stage, "small") for entry in group.entries}


def repetitions(recipe: str, entry: str, accuracies: list[float], passes: float = 1.0) -> list[Record]:
    return [
        Record(
            entry=entry,
            recipe=recipe,
            part="repeat",
            setting=("optimizer.rho=0.4",),
            seed=seed,
            fingerprint=f"{recipe}{entry}{seed}",
            commit="abc",
            seconds=20.0 - seed,
            diverged=False,
            last={"test_accuracy": accuracy / 100, "passes": passes},
        )
        for seed, accuracy in enumerate(accuracies)
    ]


JUDGED = {"AdamW", "Partial LE-SAM", "One-pass LE-SAM", "LE-SAM"}


def stage(recipe: str, base: str, ours: list[float], late: list[float]) -> list[Record]:
    """LE-SAM gains 4 points over its base, with little noise; the others are given."""
    return [
        *repetitions(recipe, base, [70.0] * 10),
        *repetitions(recipe, "LE-SAM", [74.0 + noise for noise in JITTER], passes=2.0),
        *repetitions(recipe, "One-pass LE-SAM", ours),
        *repetitions(recipe, "SAM, in the last eighth only", late, passes=1.125),
    ]


@pytest.mark.parametrize("stage", PRICE.stages, ids=lambda stage: stage.recipe)
def test_every_entry_is_searched_alike_and_those_of_the_study_are_its_runs(stage):
    ours = entries(PRICE, stage)
    assert {len(entry.settings) for entry in ours.values()} == {5}
    prints = {
        name: {config.fingerprint for _, config in entry.trials(scale="small", seeds=(0, 1))}
        for name, entry in ours.items()
    }
    for method in ("Partial LE-SAM", "One-pass LE-SAM"):
        ways = (f"{method}, {way}" for way in ("everything", "norm layers alone"))
        halves = [prints[name] for name in ways if name in ours]
        assert len(halves) == (2 if stage in (DIGITS, CONVOLUTIONAL) else 0)
        if halves:  # its trials are some of theirs
            both = prints.pop(method)
            assert both <= set.union(*halves)
            assert [len(both & half) for half in halves] == [4, 6]  # two seeds each
    assert len(set.union(*prints.values())) == 10 * len(prints)
    studied = next((one for one in STUDY.stages if one.recipe == stage.recipe), None)
    theirs = {} if studied is None else entries(STUDY, studied)
    shared = [name for name in ours if name in theirs]
    methods = (stage.base, "sam", "lesam", *(() if stage is CONVOLUTIONAL else ("msam", "s2sam", "esam")))
    assert set(shared) == (set(map(title, methods)) if theirs else set())
    for name in shared:
        both = [entry.trials(scale="small", seeds=(0, 1)) for entry in (ours[name], theirs[name])]
        assert [config.fingerprint for _, config in both[0]] == [config.fingerprint for _, config in both[1]]


def test_late_sam_has_an_eighth_of_the_epochs_and_radii_are_scheduled_as_the_recipe_schedules_budgets():
    for of, switch in ((MLP, 53), (DIGITS, 44)):
        named = entries(PRICE, of)
        (late,) = (entry for name, entry in named.items() if "last eighth" in name)
        assert late.config(late.settings[0], scale="small", seed=0).schedule.switch_at == switch
        budget, radius = (
            named[name].config(named[name].settings[0], scale="small", seed=0).schedule.in_epochs()
            for name in ("LE-SAM", "MSAM, scheduled like a budget")
        )
        assert budget == radius
        assert budget.budget_anneal_start is not None


def test_relatives_that_save_nothing_compete_where_methods_can_be_told_apart():
    dear = {"VaSSO", "WSAM", "CR-SAM"}
    norms = {"SAM, norm layers alone", "LE-SAM, norm layers alone"}
    found = {of.recipe: (dear | norms) & {*entries(PRICE, of)} for of in PRICE.stages}
    assert {recipe: names for recipe, names in found.items() if names} == {"mnist1d-mlp": dear, "digits": dear | norms}
    digits = entries(PRICE, DIGITS)
    for name in norms:
        assert digits[name].config(digits[name].settings[0], scale="small", seed=0).optimizer.perturb == "norms"


def test_shares_and_verdicts():
    """A method that loses 0.1 of a gain of 4 points is not inferior, one that loses 1 is; half the gain is 50 %."""
    found = stage("digits", "SGD", [73.9 - noise for noise in JITTER], [72.0] * 10)
    one = Frontier(DIGITS, found)
    assert one.counts
    assert one.share("One-pass LE-SAM") == pytest.approx(3.9 / 4)
    assert one.share("SAM, in the last eighth only") == pytest.approx(0.5)
    assert one.verdict("One-pass LE-SAM") == "not inferior"
    assert one.verdict("SAM, in the last eighth only") == "inferior"
    single = [repetition for repetition in found if repetition.seed == 0]
    assert Frontier(DIGITS, single).share("One-pass LE-SAM") is None  # one seed says nothing
    wide = stage("digits", "SGD", [73.9 + 200 * noise for noise in JITTER], [72.0] * 10)
    assert Frontier(DIGITS, wide).verdict("One-pass LE-SAM") == "undecided"
    (row,) = (row for row in one.results() if row[0] == "One-pass LE-SAM")
    assert row[1:3] == ("1", "")
    assert row[5] == "73.90 ± 0.01"
    assert row[6].startswith("-0.10 (-0.12 to -0.08")
    assert row[8] == "98"


def test_where_ten_seeds_do_not_decide_the_verdict_waits_for_more():
    ten = stage("mnist1d-mlp", "AdamW", [73.9] * 10, [72.0] * 10)
    assert DECIDING == 20
    one = Frontier(MLP, ten)
    assert not one.counts
    assert one.verdict("One-pass LE-SAM") == "so far (10 of 20): not inferior"
    assert one.verdict("SAM, in the last eighth only") == "inferior"
    more = [dataclasses.replace(each, seed=each.seed + 10) for each in ten]
    twenty = Frontier(MLP, [*ten, *more])
    assert twenty.counts
    assert twenty.verdict("One-pass LE-SAM") == "not inferior"
    # Those that are judged have a group of their own, with as many seeds; the others have the stage's.
    repeats = PRICE.repeats(MLP, "small")
    assert {name for name, number in repeats.items() if number == 20} == JUDGED
    assert PRICE.seeds == tuple(range(20))


@pytest.mark.parametrize(
    ("stage", "judged"), [(MLP, JUDGED), (CONVOLUTIONAL, {"SGD", "Partial LE-SAM", "LE-SAM"})], ids=["mlp", "conv"]
)
def test_those_that_are_judged_have_twenty_runs_and_the_others_ten(stage, judged):
    request = Request(scale="small", runs=Path("nowhere"), records=RESULTS, recipes=(stage.recipe,))
    planned = Counter(run.name for run in contest_runs(PRICE, request.of(paper.find("price"))) if run.part == "repeat")
    assert {name for name, runs in planned.items() if runs == 20} == judged
    assert {runs for runs in planned.values()} == {10, 20}
    assert len(planned) == len(entries(PRICE, stage))


def test_the_summary_has_the_mean_and_the_worst_stage_and_nothing_that_is_not_complete():
    first = stage("cifar100-mlp", "AdamW", [74.0] * 10, [72.0] * 10)
    second = stage("digits", "SGD", [71.0] * 10, [72.0] * 3)
    made = tables([*first, *second])
    ours, late = made["price: summary"][1:]
    assert ours == ("One-pass LE-SAM", "1", "2 of 2", "62", "25 (digits)", "on 1 of 2")
    assert late == ("SAM, in the last eighth only", "1.12", "1 of 2", "50", "50 (cifar100-mlp)", "on 0 of 1")
    assert [(row[0], row[3], row[4], row[-1]) for row in made["price: target"][1:]] == [
        ("cifar100-mlp", "yes", "Partial LE-SAM", "not run yet"),
        ("cifar100-mlp", "yes", "One-pass LE-SAM", "not inferior"),
        ("digits", "yes", "Partial LE-SAM", "not run yet"),
        ("digits", "yes", "One-pass LE-SAM", "inferior"),
    ]
    assert made["mnist1d-mlp: price"] == []


def test_a_stage_without_a_clear_gain_does_not_count():
    """A gain of 4 points with a standard error of 0.4215 is 9.5 of them."""
    deviation = [1.2645 * (-1) ** seed for seed in range(10)]
    found = stage("digits", "SGD", [74.0] * 10, [72.0] * 10)
    noisy = [one for one in found if one.entry != "LE-SAM"]
    noisy += repetitions("digits", "LE-SAM", [74.0 + noise for noise in deviation])
    one = Frontier(DIGITS, noisy)
    assert one.standard_errors == pytest.approx(4 / (1.2645 * (10 / 9) ** 0.5 / 10**0.5))
    assert not one.counts
    made = tables(noisy)
    assert made["price: summary"] == []
    assert made["price: target"][1][3] == "no"


def test_the_picture_has_two_panels_for_each_stage_with_the_means_of_the_table():
    assert figures([]) == {}
    found = stage("mnist1d-mlp", "AdamW", [74.0] * 10, [72.0] * 10) + stage("digits", "SGD", [71.0] * 10, [72.0] * 10)
    axes = figures(found)["price"].axes
    assert [axis.get_title(loc="left") for axis in axes] == ["mnist1d-mlp", "", "digits", ""]
    drawn = {str(bars.get_label()): tuple(bars[0].get_xydata()[0]) for bars in axes[0].containers}
    assert drawn["SAM, in the last eighth only"] == pytest.approx((1.125, 72.0))
    assert drawn["LE-SAM"] == pytest.approx((2.0, 74.0))
    assert not axes[1].containers  # nothing was timed
    timed = [dataclasses.replace(one, part="time", seconds=3.5, last={}) for one in found if one.seed == 0]
    lost = repetitions("mnist1d-mlp", "LookSAM", [20.0] * 10)
    left, right = figures([*found, *timed, *lost])["price"].axes[:2]
    assert {bars[0].get_xydata()[0][0] for bars in right.containers} == {3.5}
    assert left.get_ylim()[0] == pytest.approx(70.0 - 2 * 4.0)  # or the others would be one line
    assert 74.0 < left.get_ylim()[1] < 75.0  # no room for the way down to the lost one
    assert [text.get_text() for text in left.texts] == ["LookSAM: 20.0 \N{DOWNWARDS ARROW}"]


def test_seconds_are_those_that_were_measured_in_turns():
    found = stage("mnist1d-mlp", "AdamW", [74.0] * 10, [72.0] * 10)
    timed = [dataclasses.replace(one, part="time", seconds=3.5, last={}) for one in found if one.seed == 0]
    one = Frontier(MLP, [*found, *timed[:2]])
    assert [(row[0], row[2]) for row in one.results()[1:]] == [
        ("AdamW", "3.5"),
        ("One-pass LE-SAM", ""),
        ("SAM, in the last eighth only", ""),
        ("LE-SAM", "3.5"),
    ]
    assert one.results()[0][2] == "seconds of a core"


def test_a_timed_run_is_a_whole_one(tmp_path: Path):
    """The first repetition of an entry, through all its epochs; its record is one like all others."""
    config = smoke("mnist1d-mlp", "schedule.switch_at=2", method="sam")
    entry = Entry(name="late", recipe="mnist1d-mlp", method="sam")
    runs = [
        ContestRun(
            name="late", entry=entry, part=part, setting=(), config=dataclasses.replace(config, seed=seed), order=0
        )
        for part, seed in (("search", 7), ("repeat", 3), ("repeat", 4))
    ]
    told: list[str] = []
    (found,) = timed(runs, told.append)
    assert (found.entry, found.part, found.seed, found.recipe) == ("late", "time", 3, "mnist1d-mlp")
    assert found.seconds > 0
    assert told[-1] == "epoch 3 of 3"
    records.write([found], tmp_path)
    assert records.read(tmp_path) == [found]


def test_the_price_at_the_smoke_scale_has_every_stage_and_a_picture(tmp_path: Path):
    request = Request(scale="smoke", runs=tmp_path / "runs", recipes=("mnist1d-mlp",), progress=lambda text: None)
    folder = paper.reproduce("price", request, tmp_path)
    assert folder is not None
    table = (folder / "table.md").read_text()
    assert "| SAM, every 4th step | 1." in table
    assert (folder / "figure.png").exists()
    assert {
        run.column.partition(",")[0] for run in paper.find("price").plan(Request(scale="smoke", runs=tmp_path))
    } == {one.recipe for one in PRICE.stages}
