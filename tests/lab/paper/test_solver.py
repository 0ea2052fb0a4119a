"""Flatness names the solver and the draws behind its numbers; sensitivity names its budgets."""

from __future__ import annotations

from pathlib import Path

import pytest

from lesam.lab import recipes
from lesam.lab.cli import main
from lesam.lab.config.optimizer import own_settings
from lesam.lab.config.text import override
from lesam.lab.paper import find
from lesam.lab.paper.experiment import Cell, Request
from lesam.lab.report import plots
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.repetitions import group


def test_the_papers_solver_is_chosen_by_name_and_named_in_the_table(tmp_path: Path) -> None:
    arguments = ["reproduce", "flatness", "--scale", "smoke", "--methods", "sgd", "-o", str(tmp_path)]
    for solver, more in (("lanczos", []), ("power", ["--solver", "power"])):
        assert main([*arguments, *more]) == 0
        text = (tmp_path / "flatness" / "smoke" / "table.md").read_text()
        assert f"Eigenvalues: solver {solver}" in text
        assert "LPF: 3 draws" in text
        assert "Hessian products" in text


@pytest.mark.parametrize(
    ("scale", "budgets"), [("paper", ["0.3", "0.35", "0.4", "0.45", "0.5"]), ("smoke", None), ("small", None)]
)
def test_the_rows_of_sensitivity_are_the_budgets_and_the_own_one_is_marked(
    scale: str, budgets: list[str] | None, tmp_path: Path
) -> None:
    experiment = find("sensitivity")
    request = Request(scale=scale, seeds=(0,), runs=tmp_path)
    planned = experiment.plan(request)
    cells = []
    for item in planned:
        run = RunFolder.of(item.config, tmp_path)
        run.create(item.config, {})
        run.finish({"last": {"test_accuracy": 0.9}, "best_test_selected": {"test_accuracy": 0.9}})
        cells.append(Cell(row=item.row, column=item.column, configs=(item.config,), runs=(run,)))
    sigmas = [f"{own_settings(item.config.optimizer)['sigma']:.3g}" for item in planned]
    assert budgets is None or sigmas == budgets
    own = f"{own_settings(recipes.build('cifar100-resnet18', scale=scale).optimizer)['sigma']:.3g}"
    for _, *lines in experiment.report(request, cells).tables.values():
        expected = [f"sigma = {each}" + (" (the recipe's own)" if each == own else "") for each in sigmas]
        assert [line[0] for line in lines] == expected


def test_the_axis_of_sensitivity_shows_the_budgets(tmp_path: Path) -> None:
    runs = []
    for sigma in (0.0857143, 0.1, 0.142857):
        config = override(recipes.build("digits", scale="smoke"), [f"optimizer.sigma={sigma}"])
        run = RunFolder.of(config, tmp_path)
        run.create(config, {})
        run.append({"epoch": 0, "test_accuracy": 0.9}, [])
        run.finish({"last": {"test_accuracy": 0.9}, "best_test_selected": {"test_accuracy": 0.9}})
        runs.append(run)
    (axis,) = plots.sensitivity(group(runs)).axes
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["0.0857", "0.1", "0.143"]
    assert list(axis.get_xticks()) == pytest.approx([0.0857143, 0.1, 0.142857])
