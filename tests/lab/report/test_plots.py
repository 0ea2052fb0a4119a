"""Figures show every point of every run, and refuse to show nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text

from lesam.flatness import Landscape
from lesam.flatness.figures import landscapes
from lesam.lab.cli import main
from lesam.lab.paper.experiment import Cell, Request
from lesam.lab.paper.experiments.stabilisers import EXPERIMENT
from lesam.lab.report import paper_size, plots
from lesam.lab.report.page.entries import read
from lesam.lab.runs.folder import RunFolder, find_runs
from lesam.lab.runs.repetitions import group
from tests.lab.report.page.folders import finished
from tests.lab.running import smoke


def with_rows(runs: Path, accuracies: list[float], *changes: str, seed: int = 0) -> RunFolder:
    """A run folder with chosen test accuracies."""
    config = replace(smoke("digits", *changes, method="lesam"), seed=seed)
    folder = RunFolder.of(config, runs)
    folder.create(config, {})
    for epoch, accuracy in enumerate(accuracies):
        row = {"epoch": epoch, "test_accuracy": accuracy, "train_accuracy": accuracy, "train_loss": 1.0, "rho": 1.0}
        folder.append(row, [])
    if accuracies:
        best = {"test_accuracy": max(accuracies), "epoch": 0}
        folder.finish({"last": folder.metrics()[-1], "best_test_selected": best})
    return folder


def assert_nothing_cut_off(figure: Figure, lines: int) -> None:
    axis = figure.axes[0]
    curves = [line for line in axis.lines if not str(line.get_label()).startswith("_")]
    assert len(curves) == lines
    low, high = axis.get_ylim()
    for curve in curves:
        heights = np.asarray(curve.get_ydata(), dtype=float)
        assert low <= heights.min()
        assert heights.max() <= high


def test_no_curve_is_cut_off(tmp_path: Path) -> None:
    with_rows(tmp_path, [0.80, 0.81], "schedule.switch_at=1")
    with_rows(tmp_path, [0.20, 0.99], "schedule.switch_at=2")
    assert_nothing_cut_off(plots.switch(group(find_runs([tmp_path]))), 2)
    cells = []
    for number, (row, values) in enumerate({"cap alone": [0.80, 0.81], "neither": [0.20, 0.99]}.items()):
        run = with_rows(tmp_path / "cells", values, f"optimizer.sigma={number + 1}")
        cells.append(Cell(row=row, column="", configs=(run.config(),), runs=(run,)))
    request = Request(scale="smoke", seeds=(0,), runs=tmp_path)
    assert_nothing_cut_off(EXPERIMENT.draw(request, cells)["stabilisers"], 2)


@pytest.mark.parametrize("kind", ["curves", "radius", "switch"])
def test_an_empty_picture_is_refused(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = with_rows(tmp_path / "runs", [])
    assert main(["plot", kind, str(tmp_path / "runs"), "-o", str(tmp_path / "picture.png")]) == 2
    assert str(run.path) in capsys.readouterr().err
    assert not (tmp_path / "picture.png").exists()


def test_seeds_of_unequal_length_are_drawn_to_the_end_of_the_longest(tmp_path: Path) -> None:
    with_rows(tmp_path, [0.1, 0.3, 0.9], seed=0)
    with_rows(tmp_path, [0.3], seed=1)
    (line,) = plots.curves(group(find_runs([tmp_path]))).axes[0].lines
    assert list(line.get_xdata()) == [1, 2, 3]
    assert list(line.get_ydata()) == pytest.approx([20.0, 30.0, 90.0])
    assert "n = 2 up to epoch 1" in str(line.get_label())


def test_unfinished_runs_are_drawn_apart_and_not_averaged(tmp_path: Path) -> None:
    with_rows(tmp_path, [0.1, 0.3], seed=0)
    (with_rows(tmp_path, [0.5], seed=1).path / "summary.json").unlink()
    groups = group(find_runs([tmp_path]))
    figure = plots.caption(plots.curves(groups), groups)
    ended, apart = figure.axes[0].lines
    assert list(ended.get_ydata()) == pytest.approx([10.0, 30.0])
    assert list(apart.get_ydata()) == pytest.approx([50.0])
    assert (ended.get_label(), apart.get_label()) == ("LE-SAM", "LE-SAM, unfinished")
    assert apart.get_linewidth() < ended.get_linewidth()
    assert figure.get_suptitle() == "digits, smoke scale, n = 1"


def test_ticks_are_whole_epochs_and_a_narrow_range_is_not_logarithmic(tmp_path: Path) -> None:
    with_rows(tmp_path, [0.1, 0.3])
    figure = plots.curves(group(find_runs([tmp_path])))
    figure.draw_without_rendering()
    assert all(tick == round(tick) for axis in figure.axes for tick in axis.get_xticks())
    accuracy, _, loss = figure.axes
    assert all(axis.get_legend() is None for axis in figure.axes)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["LE-SAM"]  # once for all panels
    assert loss.get_yscale() == "linear"
    accuracy.plot([1, 2], [1e-3, 1.0])
    plots.logarithmic(accuracy)
    assert accuracy.get_yscale() == "log"


@pytest.mark.parametrize("kind", ["curves", "radius", "sensitivity", "switch"])
def test_legends_lie_below_the_panels_and_say_what_bands_are(kind: str, tmp_path: Path) -> None:
    for seed in (0, 1):
        finished(replace(smoke("digits", method="lesam"), seed=seed), tmp_path / str(seed), [0.1, 0.9])
    groups = group(find_runs([tmp_path]))
    figure = plots.caption(plots.KINDS[kind](groups), groups)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [axis.get_legend() for axis in figure.axes] == [None] * len(figure.axes)
    assert not any(legend.get_window_extent().overlaps(axis.get_window_extent()) for axis in figure.axes)
    assert legend.get_texts()[-1].get_text() == "± one standard deviation over seeds"
    assert figure.get_suptitle() == "digits, smoke scale, n = 2"


def test_landscapes_for_a_paper_keep_their_panels_and_have_small_letters() -> None:
    axis = torch.linspace(-1, 1, 3, dtype=torch.float64)
    plane = Landscape(loss=axis.square()[:, None] + axis.square(), x=axis, y=axis, settings={})
    figure = landscapes({"one": plane, "two": plane}, beside=1)
    paper_size.shrink(figure, "column")
    width, height = figure.get_size_inches()
    assert width == pytest.approx(3.3)
    assert height >= 2 * 2.4  # two rows
    assert {text.get_fontsize() for text in figure.findobj(Text)} == {8.0}
    screen = landscapes({"one": plane, "two": plane})
    before = list(screen.get_size_inches())
    paper_size.shrink(screen, "screen")
    assert list(screen.get_size_inches()) == before


@pytest.mark.parametrize(("size", "inches"), [("column", 3.3), ("page", 6.9)])
def test_figures_for_a_paper_have_its_width_and_letters_that_are_letters(
    size: str, inches: float, tmp_path: Path
) -> None:
    with_rows(tmp_path / "runs", [0.1, 0.3])
    target = tmp_path / "figure.pdf"
    assert main(["plot", "curves", str(tmp_path / "runs"), "--size", size, "-o", str(target)]) == 0
    content = target.read_bytes()
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", content)
    assert box is not None
    assert float(box[1]) == pytest.approx(72 * inches)
    assert b"/FontFile2" in content  # TrueType
    assert b"/Type3" not in content
    figure = plots.curves(group(find_runs([tmp_path / "runs"])))
    paper_size.fit(figure, size)  # type: ignore[arg-type]
    figure.draw_without_rendering()
    frames = [axis.get_tightbbox() for axis in figure.axes]
    legend = figure.legends[0].get_window_extent()
    assert not any(frame.overlaps(legend) for frame in frames)
    assert not any(one.overlaps(other) for one in frames for other in frames if one is not other)


def tracked(runs: Path, number: int, epochs: int = 1) -> None:
    config = smoke("digits", f"optimizer.rho={0.01 * (number + 1)}", method="sam")
    run = RunFolder(runs / str(number))
    run.create(config, {})
    for epoch in range(epochs):
        values = {"eigenvalue": 1.0 + number, "rho": 0.1, "rho_min": 0.05, "rho_max": 0.2, "test_accuracy": 0.5}
        run.append({"epoch": epoch, **values, "train_accuracy": 0.5, "train_loss": 1.0}, [])
    run.finish({"last": run.metrics()[-1], "best_test_selected": {"test_accuracy": 0.5, "epoch": 0}})


def test_many_settings_have_the_same_looks_in_every_figure_and_on_the_page(tmp_path: Path) -> None:
    for number in range(25):
        tracked(tmp_path, number)
    groups = group(find_runs([tmp_path]))
    page = {entry.name: (entry.look.colour, entry.look.dash) for entry in read(find_runs([tmp_path]))[0]}
    assert len(set(page.values())) == 25
    for figure in (plots.flatness(groups), plots.curves(groups)):
        lines = [line for line in figure.axes[0].lines if line.get_label() in page]
        assert {str(line.get_label()): (line.get_color(), line.get_linestyle()) for line in lines} == page


def test_two_recipes_never_share_a_look(tmp_path: Path) -> None:
    for recipe in ("digits", "mnist1d-mlp"):
        for method in ("sgd", "sam"):
            finished(smoke(recipe, method=method), tmp_path / f"{recipe}-{method}", [0.1, 0.9])
    runs = find_runs([tmp_path])
    page = {entry.name: (entry.look.colour, entry.look.dash) for entry in read(runs)[0]}
    assert len(set(page.values())) == 4
    lines = [line for line in plots.curves(group(runs)).axes[0].lines if line.get_label() in page]
    assert {str(line.get_label()): (line.get_color(), line.get_linestyle()) for line in lines} == page


def test_sensitivity_joins_no_points_of_other_recipes(tmp_path: Path) -> None:
    for recipe in ("digits", "mnist1d-mlp"):
        for rho in (0.1, 0.2):
            finished(smoke(recipe, f"optimizer.rho={rho}", method="sam"), tmp_path / f"{recipe}{rho}", [0.1, 0.9])
    (axis,) = plots.sensitivity(group(find_runs([tmp_path]))).axes
    drawn = {str(each.get_label()): each[0] for each in axis.containers}
    assert set(drawn) == {"SAM, digits smoke", "SAM, mnist1d-mlp smoke"}
    assert all(list(line.get_xdata()) == [0.1, 0.2] for line in drawn.values())
    assert len({line.get_linestyle() for line in drawn.values()}) == 2


@pytest.mark.parametrize("kind", ["curves", "radius", "flatness"])
def test_a_single_epoch_is_seen_at_a_whole_number(kind: str, tmp_path: Path) -> None:
    tracked(tmp_path, 0)
    figure = plots.KINDS[kind](group(find_runs([tmp_path])))
    figure.draw_without_rendering()
    for axis in figure.axes:
        if axis.lines:
            assert all(tick == round(tick) for tick in axis.get_xticks())
            assert all(line.get_marker() not in ("", "None") for line in axis.lines if len(line.get_xdata()) == 1)


def test_the_range_of_the_radius_is_in_the_legend(tmp_path: Path) -> None:
    tracked(tmp_path, 0, epochs=2)
    (legend,) = plots.radius(group(find_runs([tmp_path]))).legends
    assert "smallest and largest radius of an epoch" in [text.get_text() for text in legend.get_texts()]
