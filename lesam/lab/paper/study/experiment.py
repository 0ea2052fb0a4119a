"""A contest as an experiment of ``lesam reproduce``: trials of all entries, then repetitions of what was chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from lesam.lab.paper.experiment import Cell, Planned, Report, Request
from lesam.lab.paper.study.contest import Contest
from lesam.lab.paper.study.records import Record
from lesam.lab.paper.study.schedule import contest_runs, finished
from lesam.lab.paper.study.tables import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Contested:
    """Who competes, and how what they reach is written down."""

    contest: Contest
    title: str
    tables: Callable[[Sequence[Record], str], Mapping[str, Table]]
    """From records and a scale to tables by heading."""
    figures: Callable[[Sequence[Record], str], Mapping[str, Figure]]
    """From the same to figures by name."""

    @property
    def name(self) -> str:
        """That of the contest."""
        return self.contest.name

    @property
    def recipes(self) -> tuple[str, ...]:
        """Those of the stages."""
        return tuple(stage.recipe for stage in self.contest.stages)

    @property
    def searches(self) -> bool:
        """Repetitions follow from trials."""
        return True

    def seeds(self, scale: str) -> tuple[int, ...]:
        """As many repetitions as the longest stage has."""
        return (0, 1) if scale == "smoke" else self.contest.seeds

    def plan(self, request: Request) -> list[Planned]:
        """The trials, and the repetitions of every entry whose trials are finished."""
        if strange := [name for name in request.recipes if name not in self.recipes]:
            raise ValueError(f"the {self.name} has no {', '.join(strange)}; it has {', '.join(self.recipes)}")
        return [
            Planned(
                row=run.name,
                column=f"{run.entry.recipe}, trial {' '.join(run.setting)}"
                if run.part == "search"
                else run.entry.recipe,
                config=run.config,
                order=run.order,
                recorded=run.known is not None,
            )
            for run in contest_runs(self.contest, request)
        ]

    def report(self, request: Request, cells: Sequence[Cell], kept: Sequence[Mapping[str, Any]] = ()) -> Report:
        """Tables and figures of every stage."""
        found = finished(self.contest, request)
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
        return Report(
            tables={heading: table for heading, table in self.tables(found, request.scale).items() if table},
            rows=rows,
            figures=self.figures(found, request.scale),
            notes=[f"Rules and reading: docs/{self.name}.md."],
        )
