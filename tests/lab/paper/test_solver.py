"""Flatness names the solver and the draws behind its numbers; the sensitivity figure names its budgets."""

from __future__ import annotations

from pathlib import Path

import pytest

from lesam.lab import recipes
from lesam.lab.cli import main
from lesam.lab.config.text import override
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
