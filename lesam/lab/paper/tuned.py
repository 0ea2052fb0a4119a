"""A table whose every method had the same search: five settings, two seeds, chosen on images held out of training.

Published comparisons often give the new method a searched radius and the old one its default. Here each row's radius or
budget (a plain optimizer's learning rate and weight decay) is searched around the recipe's own value; the winner is
trained on all training images with the seeds of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lesam.lab.config.optimizer import OptimizerConfig, budget_name
from lesam.lab.config.run import RunConfig
from lesam.lab.config.task import ClassificationConfig
from lesam.lab.config.text import override
from lesam.lab.paper.experiment import Cell, Experiment, Planned, Report, Request, Variant
from lesam.lab.paper.grid import Grid
from lesam.lab.runs.statistics import Spread
from lesam.lab.sweeps.tuning import SEARCH_SEEDS, Setting, choose_among, finished_in, words

TUNED = "-tuned"
"""Behind the name of a table whose rows are searched alike."""
HELD_OUT: Setting = ("data.options.validation=0.1",)
STEPS = (0.25, 0.5, 1.0, 2.0, 4.0)


def tuned(experiment: Experiment) -> Experiment:
    """The same experiment with every row searched alike; refused where there is nothing to search or to choose on."""
    if not isinstance(experiment, Grid):
        raise ValueError(
            f"--tuned is for tables of test accuracy such as cifar; {experiment.name} has no rows to search"
        )
    return Tuned(experiment)


def settings(config: OptimizerConfig) -> list[Setting]:
    """Five settings around the recipe's own.

    >>> from lesam.lab.config.optimizer import optimizer_config
    >>> settings(optimizer_config("sam", rho=0.05))[1:3]
    [('optimizer.rho=0.025',), ('optimizer.rho=0.05',)]
    """
    name = budget_name(config)
    if name is not None:
        return [(f"optimizer.{name}={getattr(config, name) * step:.6g}",) for step in STEPS]
    pairs = ((0.5, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, 0.5), (1.0, 2.0))
    lr, decay = config.lr, config.weight_decay
    return [(f"optimizer.lr={lr * a:.6g}", f"optimizer.weight_decay={decay * b:.6g}") for a, b in pairs]


@dataclass(frozen=True, slots=True)
class Tuned:
    """Trials of every cell of a table, then the table with what validation chose."""

    grid: Grid

    @property
    def name(self) -> str:
        """What its results are called."""
        return self.grid.name + TUNED

    @property
    def title(self) -> str:
        """What it shows."""
        return f"{self.grid.title}, every method searched alike"

    @property
    def recipes(self) -> tuple[str, ...]:
        """Those of the table."""
        return self.grid.recipes

    @property
    def searches(self) -> bool:
        """The repetitions follow from the trials."""
        return True

    def seeds(self, scale: str) -> tuple[int, ...]:
        """Those of the table."""
        return self.grid.seeds(scale)

    def plan(self, request: Request) -> list[Planned]:
        """All trials, and the repetitions of the cells whose trials are finished."""
        planned = []
        for row, column, variant in self.grid.places(request):
            recipe = self.grid.columns[column]
            trials = self._trials(variant, recipe, request)
            planned += [
                Planned(row=row, column=f"{column}, trial {' '.join(setting)}", config=config)
                for setting, config in trials
            ]
            choice = choose_among(trials, finished_in(request.runs))
            if choice is not None:
                for seed in request.seeds:
                    config = variant.config(recipe, request.scale, seed, request.changes)
                    planned.append(Planned(row=row, column=column, config=override(config, choice.setting), order=1))
        return planned

    def report(self, request: Request, cells: Sequence[Cell], kept: Sequence[Mapping[str, Any]] = ()) -> Report:
        """The table of the chosen settings, and what was searched."""
        columns = set(self.grid.columns)
        found = self.grid.report(
            request,
            [cell for cell in cells if cell.column in columns],
            [row for row in kept if row.get("column") in columns],
        )
        searched = [("", "column", "setting: mean validation accuracy (%)", "chosen")]
        for row, column, variant in self.grid.places(request):
            choice = choose_among(self._trials(variant, self.grid.columns[column], request), finished_in(request.runs))
            if choice is not None:
                scores = (f"{words(of)}: {Spread.of(values).mean * 100:.2f}" for of, values in choice.scores.items())
                searched.append((row, column, "; ".join(scores), words(choice.setting)))
        trials = [
            {
                "row": cell.row,
                "column": cell.column,
                "seeds": [config.seed for config in cell.configs],
                "runs": [run.path.name for run in cell.runs],
            }
            for cell in cells
            if cell.column not in columns
        ]
        notes = [
            "Every row was searched over five settings with two seeds on held-out training images; the paper's was not."
        ]
        return Report(
            tables={**found.tables, "Searches": searched},
            rows=[*found.rows, *trials],
            figures=found.figures,
            notes=[*found.notes, *notes],
        )

    def _trials(self, variant: Variant, recipe: str, request: Request) -> list[tuple[Setting, RunConfig]]:
        own = variant.config(recipe, request.scale, 0, request.changes)
        if not isinstance(own.task, ClassificationConfig) or own.data.name == "imagefolder":
            raise ValueError(f"--tuned chooses on held-out training images, and {own.recipe} cannot hold any out")
        held_out = () if own.data.options.get("validation") else HELD_OUT
        return [
            (setting, override(variant.config(recipe, request.scale, seed, (*request.changes, *held_out)), setting))
            for setting in settings(own.optimizer)
            for seed in SEARCH_SEEDS
        ]
