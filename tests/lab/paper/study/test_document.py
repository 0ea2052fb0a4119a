"""The document's tables are those of the committed records, and are replaced without touching a word around them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lesam.lab.paper.study import records
from lesam.lab.paper.study.__main__ import made_from
from lesam.lab.paper.study.claims import judged
from lesam.lab.paper.study.document import filled
from lesam.lab.paper.study.entries import MLP
from lesam.lab.paper.study.figures import figures
from lesam.lab.paper.study.groups import STUDY, scheduled
from lesam.lab.paper.study.price import PRICE
from lesam.lab.paper.study.quantities import quantities
from lesam.lab.paper.study.records import Record
from lesam.lab.paper.study.tables import tables
from lesam.lab.report import plots

ROOT = Path(__file__).resolve().parents[4]
HEADING = "mnist1d-mlp: test accuracy"
MOVED = {"study": {"ASAM", "ESAM", "MSAM"}, "price": set()}
"""Entries whose range of radii was moved, as the document says: their first trials are kept."""


def repetitions(entry: str, accuracies: list[float]) -> list[Record]:
    return [
        Record(
            entry=entry,
            recipe="mnist1d-mlp",
            part="repeat",
            setting=("optimizer.rho=0.4",),
            seed=seed,
            fingerprint=f"{entry}{seed}",
            commit="abc",
            seconds=1.0,
            diverged=False,
            last={"test_accuracy": accuracy, "passes": 2.0},
        )
        for seed, accuracy in enumerate(accuracies)
    ]


def test_only_what_lies_between_the_comments_changes():
    text = f"before\n<!-- table: {HEADING} -->\nold\n<!-- end of table -->\nafter\n"
    found = filled(text, tables(repetitions("SAM", [0.70, 0.72])))
    assert found.startswith("before\n")
    assert found.endswith("<!-- end of table -->\nafter\n")
    assert "old" not in found
    assert "| SAM | 2 | rho 0.4 | 2 | 71.00 ± 1.41 |" in found
    assert filled(found, tables(repetitions("SAM", [0.70, 0.72]))) == found


def test_a_table_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="no table 'mnist1d-mlp: colours'"):
        filled("<!-- table: mnist1d-mlp: colours -->\n<!-- end of table -->", tables([]))


def test_a_table_without_rows_yet_says_so():
    text = "<!-- table: cifar100-mlp: searches -->\nold\n<!-- end of table -->"
    assert "Not run yet." in filled(text, tables(repetitions("SAM", [0.70, 0.72])))


def test_what_is_spent_is_counted_against_the_plan_that_was_written_beforehand():
    def row(*found: Record) -> tuple[str, ...]:
        return next(row for row in tables(list(found))["study: spent"] if row[0] == "cifar100-resnet18")

    plan = {row[0]: row[1] for row in tables([])["study: spent"]}
    assert (plan["mnist1d-mlp"], plan["cifar100-resnet18"], plan["all"]) == ("1,362", "84", "2,206")
    run = dataclasses.replace(repetitions("SAM", [0.7])[0], recipe="cifar100-resnet18", seconds=1800.0)
    clock = dataclasses.replace(run, part="time")  # no run of the plan
    again = dataclasses.replace(run, entry="SAM by another name")  # one run, for two entries
    other = dataclasses.replace(run, fingerprint="another")
    assert row(run, again, other, clock) == ("cifar100-resnet18", "84", "3", "2", "1.0")


def test_entries_on_wrong_labels_are_compared_with_those_on_wrong_labels():
    names = {"AdamW": 0.70, "SAM": 0.72, "AdamW, 20 % wrong labels": 0.50, "SAM, 20 % wrong labels": 0.56}
    runs = [one for name, of in names.items() for one in repetitions(name, [of, of + 0.01])]
    rows = {row[0]: row[5:7] for row in tables(runs)[HEADING]}
    assert rows["SAM, 20 % wrong labels"] == ("+6.00 (+6.00 to +6.00)", "")
    assert rows["AdamW, 20 % wrong labels"] == ("", "-6.00 (-6.00 to -6.00)")
    assert rows["SAM"] == ("+2.00 (+2.00 to +2.00)", "")


def test_a_diverged_run_counts_as_nothing_and_is_said():
    good, bad = repetitions("SAM", [0.70, 0.72])
    table = tables([good, dataclasses.replace(bad, diverged=True)])[HEADING]
    assert table[1][4] == "35.00 ± 49.50 (1 diverged)"


def test_every_figure_is_drawn_from_records(tmp_path: Path):
    """Three pictures where there are accuracies, trials of the scan and tracked runs; none without."""
    assert figures([]) == {}
    curve = {name: [2.0, 1.0] for name in ("epoch", "train_loss", "rho", "eigenvalue", "trace", "lpf_excess")}
    (sam, base) = (repetitions(name, [0.70, 0.72, 0.71]) for name in ("SAM", "AdamW"))
    tracked = [dataclasses.replace(one, part="track", curve=curve) for one in sam]
    scanned = scheduled(MLP, "lesam", "annealed")
    trials = [
        dataclasses.replace(sam[0], entry=scanned.name, part="search", setting=of, last={"validation_accuracy": 0.7})
        for of in scanned.settings
    ]
    found = figures([*sam, *base, *tracked, *trials])
    assert list(found) == ["study-accuracy", "study-budgets", "study-flatness"]
    for name, figure in found.items():
        assert plots.save(figure, tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_an_entry_that_lost_the_run_does_not_squeeze_the_others():
    """GSAM gains two points and LE-SAM loses fifty: the axis ends at -2, where the row of LE-SAM says its number."""
    scores = {"AdamW": [0.70, 0.72], "GSAM": [0.72, 0.74], "SAM": [0.69, 0.71], "LE-SAM": [0.20, 0.22]}
    axis = figures([one for name, of in scores.items() for one in repetitions(name, of)])["study-accuracy"].axes[0]
    assert axis.get_xlim()[0] == pytest.approx(-2.0)
    assert [text.get_text() for text in axis.texts] == ["\N{LEFTWARDS ARROW} -50.0 (-50.0 to -50.0)"]
    assert axis.texts[0].xy[1] == [label.get_text() for label in axis.get_yticklabels()].index("LE-SAM")
    assert axis.get_ylim()[0] < 0
    assert len(axis.containers) == 2


committed = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="documents are not part of an installed package")


@committed
def test_the_committed_documents_have_the_numbers_of_the_committed_records():
    made = made_from(ROOT / "results")
    assert made["mnist1d-mlp: summary"]
    pages = [(ROOT / name).read_text() for name in ("docs/study.md", "docs/price.md", "README.md")]
    for heading in made:
        assert any(f"<!-- table: {heading} -->" in page for page in pages), heading
    for page in pages:
        assert filled(page, made) == page


@committed
@pytest.mark.parametrize("contest", ["study", "price"])
def test_every_committed_number_has_the_configuration_that_its_run_had(contest: str):
    every = records.read(ROOT / "results" / contest)
    assert [one for one in every if records.rebuilt(one, "small").fingerprint != one.fingerprint] == []


@committed
@pytest.mark.parametrize("contest", [STUDY, PRICE], ids=lambda contest: contest.name)
def test_every_committed_number_stands_under_the_entry_that_was_run(contest):
    """An entry that changes takes a new name, or its old runs would be counted as those of the new one."""
    plan = {
        (stage.recipe, entry.name): entry
        for stage in contest.stages
        for group in contest.groups(stage, "small")
        for entry in (*group.entries, *(one.leader for one in group.followers))
    }
    others = set()
    for one in records.read(ROOT / "results" / contest.name):
        entry = plan.get((one.recipe, one.entry))
        if entry is None:  # a follower, which has the settings of its leader
            continue
        if one.setting not in entry.settings or not set(entry.fixed) <= set(one.configuration):
            others.add(one.entry)
    assert others <= MOVED[contest.name]


@committed
def test_the_readme_names_the_claims_that_twenty_seeds_leave_undecided():
    readme = " ".join((ROOT / "README.md").read_text().split())
    own = [one for one in records.read(ROOT / "results" / "study") if one.recipe == MLP.recipe]
    for one in judged(MLP, quantities(own)):
        if one.verdict == "undecided" and one.difference.spread.n >= MLP.repeats:
            assert one.claim.text in readme
