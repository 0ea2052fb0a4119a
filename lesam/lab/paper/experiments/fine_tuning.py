"""Fine-tuning a network that was pretrained on other classes: the new task, and what is forgotten of the old one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lesam.lab.paper.experiment import Cell, Planned, Report, Request
from lesam.lab.paper.transfer.contest import transfer_runs
from lesam.lab.paper.transfer.tables import tables
from lesam.lab.recipes.finetuning import FINETUNING, PRETRAINING


class FineTuning:
    """Pretrained networks, trials of all entries from them, then repetitions of what validation chose."""

    name = "fine-tuning"
    title = "A small network fine-tuned on new classes of CIFAR-100, and what it forgets of the old ones"
    recipes = (PRETRAINING, FINETUNING)
    searches = True

    def seeds(self, scale: str) -> tuple[int, ...]:
        """Ten repetitions."""
        return (0, 1) if scale == "smoke" else tuple(range(10))

    def plan(self, request: Request) -> list[Planned]:
        """The pretrained networks, and what can be trained from those that are finished."""
        return [
            Planned(
                row=run.name,
                column=f"{run.config.recipe}, trial {' '.join(run.setting)}".rstrip()
                if run.part == "search"
                else run.config.recipe,
                config=run.config,
                order=run.order,
            )
            for run in transfer_runs(request)
            if not request.recipes or run.config.recipe in request.recipes
        ]

    def report(self, request: Request, cells: Sequence[Cell], kept: Sequence[Mapping[str, Any]] = ()) -> Report:
        """Both tasks, the differences seed by seed, and the searches."""
        found = [record for run in transfer_runs(request) if (record := run.record(request.runs))]
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
        return Report(tables=tables(found), rows=rows, notes=["Rules and reading: docs/fine-tuning.md."])


EXPERIMENT = FineTuning()
