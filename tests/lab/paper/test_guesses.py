"""What the paper does not say: marked in every table, both readings of its augmentation side by side."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from lesam.lab import paper, recipes
from lesam.lab.config.optimizer import PLAIN, own_settings
from lesam.lab.paper import results
from lesam.lab.paper.accuracy import COMPARED
from lesam.lab.paper.experiment import Report, Request
from lesam.lab.paper.grid import Grid
from lesam.lab.recipes.imagenet import imagenet_settings
from lesam.lab.recipes.recipe import MARK, figure_text
from lesam.lab.report import tables
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.repetitions import group

GUESSED_FOR_SOME = {
    "imagenet": ("SAM", "Friendly-SAM", "Eigen-SAM"),
    "lesam-plus": ("LE-SAM+", "LE-SAM+, reference form"),
    "adversarial": ("LE-SAM",),
}
"""Experiments whose setting the paper gives, but for single methods."""
GUESSED = ("vit-finetune", "pacs", "vlcs", "long-tail")


def request(**changes: Any) -> Request:
    return Request(**{"scale": "paper", "seeds": (0,), "runs": Path("runs"), **changes})


def filled(experiment: Any) -> Report:
    """A report with a number in every cell, as of an earlier result whose runs are gone."""
    rows = [
        {"row": row, "column": column, "seeds": [0], "runs": ["run"], "diverged": []}
        | {"values": {name: [50.0] for name in experiment.quantities}}
        for row in experiment.rows
        for column in experiment.columns
    ]
    made: Report = experiment.report(request(), [], rows)
    return made


@pytest.mark.parametrize("name", [name for name in paper.NAMES if name not in ("late-switch", "stabilisers")])
def test_tables_mark_what_rests_on_our_choices(name: str) -> None:
    experiment = paper.find(name)
    if not isinstance(experiment, Grid) or name in ("radius", "sensitivity"):
        return  # these draw their runs
    report = filled(experiment)
    for head, *_ in report.tables.values():
        for column in (heading for heading in head[1:] if heading != "paper"):
            assert (MARK in column) == (name in GUESSED)
    notes = [note for note in report.notes if note.startswith(MARK)]
    assert bool(notes) == (name in GUESSED or name in GUESSED_FOR_SOME)
    if name in GUESSED:
        assert all("sigma" in note and "rho" in note for note in notes)
    marked = {line[0] for _, *lines in report.tables.values() for line in lines if MARK in "".join(line)}
    assert marked == set(GUESSED_FOR_SOME.get(name, ()))


@pytest.mark.parametrize(
    ("recipe", "method", "guess"),
    [
        ("vit-cifar10", "lesam", "optimizer, learning rate"),
        ("imagenet-resnet50", "eigensam", "rho, alpha"),
        ("imagenet-resnet50", "lesam", ""),
        ("cifar10-resnet18", "lesam", ""),
        ("cifar10-resnet18", "lesamplus", "sigma, alpha"),  # of which the paper has no figure
    ],
)
def test_the_table_of_run_folders_marks_them_too(recipe: str, method: str, guess: str, tmp_path: Path) -> None:
    config = recipes.build(recipe, method=method, scale="paper")
    run = RunFolder.of(config, tmp_path)
    run.create(config, {})
    run.finish({"last": {"test_accuracy": 0.9, "train_accuracy": 1.0}, "best_test_selected": {"test_accuracy": 0.9}})
    lines = tables.lines(group([run]))
    text, latex = tables.markdown(lines), tables.latex(lines)
    figure = figure_text(recipes.figures(recipe).get(method))
    assert (f"| paper {MARK} |" in text) == bool(guess)
    assert (f"| {figure} {MARK} |" in text) == (bool(guess) and bool(figure))
    assert (f"does not give {guess}" in text) == bool(guess)
    assert (r"$^\dagger$" in latex) == bool(guess)
    (row,) = csv.DictReader(io.StringIO(tables.comma_separated(lines)))
    assert row["not_given_by_paper"].startswith(guess)
    assert bool(row["not_given_by_paper"]) == bool(guess)


def test_cutout_is_run_beside_plain_augmentation_with_the_papers_figure_beside_both() -> None:
    experiment: Any = paper.find("cutout")
    planned = experiment.plan(request(methods=("lesam",), recipes=("cifar100-resnet18",)))
    assert [(run.row, run.config.data.augment) for run in planned] == [
        ("LE-SAM", "basic"),
        ("LE-SAM with Cutout", "basic_cutout"),
    ]
    head, *lines = filled(experiment).tables["Test accuracy of the last epoch (%)"]
    for line in lines:
        if line[0] in ("LE-SAM", "LE-SAM with Cutout"):
            assert line[head.index("C100 ResNet-18") + 1] == "81.51 ± 0.08"


@pytest.mark.parametrize(
    ("change", "comparable"),
    [("data.augment=basic_cutout", True), ("record.steps_every=7", True), ("optimizer.lr=0.2", False)],
)
def test_the_note_on_comparability_knows_what_the_paper_leaves_open(change: str, comparable: bool) -> None:
    report = Report(tables={"t": [["", "C10", "paper"], ["SAM", "96.0", "96.52"]]})
    text = results.markdown(paper.find("cifar"), request(changes=(change,)), report)
    assert ("not to be compared" not in text) == comparable


def test_every_method_of_the_imagenet_table_has_a_stated_radius() -> None:
    for method in set(COMPARED) - set(PLAIN):
        stated = imagenet_settings(method)
        assert stated, method
        optimizer = recipes.build("imagenet-resnet50", method=method, scale="paper").optimizer
        assert own_settings(optimizer).items() >= stated.items()
