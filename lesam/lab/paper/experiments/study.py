"""The study: every method on small settings, searched with the same number of trials, with a verdict on every claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lesam.lab.paper.experiment import Cell, Planned, Report, Request
from lesam.lab.paper.study.entries import STAGES
from lesam.lab.paper.study.schedule import DEFAULT_SEEDS, study_runs
from lesam.lab.paper.study.tables import tables


class Study:
    """Trials of all entries, then repetitions of what validation chose."""

    name = "study"
    title = "Every method on MNIST-1D and on CIFAR, with a verdict on every claim"
    recipes = tuple(stage.recipe for stage in STAGES)
    searches = True

    def seeds(self, scale: str) -> tuple[int, ...]:
        """Twenty repetitions."""
        return (0, 1) if scale == "smoke" else DEFAULT_SEEDS

    def plan(self, request: Request) -> list[Planned]:
        """The trials, and the repetitions of every entry whose trials are finished."""
        if strange := [name for name in request.recipes if name not in self.recipes]:
            raise ValueError(f"the study has no {', '.join(strange)}; it has {', '.join(self.recipes)}")
        return [
            Planned(
                row=run.name,
                column=f"{run.entry.recipe}, trial {' '.join(run.setting)}"
                if run.part == "search"
                else run.entry.recipe,
                config=run.config,
                order=run.order,
            )
            for run in study_runs(request)
        ]

    def report(self, request: Request, cells: Sequence[Cell], kept: Sequence[Mapping[str, Any]] = ()) -> Report:
        """Tables of every stage."""
        found = [record for run in study_runs(request) if (record := run.record(request.runs))]
        rows = [
            {
                "row": cell.row,
                "column": cell.column,
                "recipe": cell.configs[0].recipe,
                "method": cell.configs[0].method,
                "seeds": [config.seed for config in cell.configs],
                "runs": [run.path.name for run in cell.runs],
            }
            for cell in cells
        ]
        return Report(tables=tables(found, request.scale), rows=rows, notes=["Rules and reading: docs/study.md."])


EXPERIMENT = Study()
