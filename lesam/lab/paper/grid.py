"""Experiments that are a grid of runs: variants in rows, recipes in columns, a few numbers from each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure as Drawing

from lesam.lab import recipes
from lesam.lab.paper.experiment import Cell, Planned, Report, Request, Variant, few_seeds, no_paper
from lesam.lab.recipes.recipe import MARK, Figure, figure_text, not_given
from lesam.lab.runs.folder import Row, RunFolder
from lesam.lab.runs.repetitions import LOST, has_diverged, settings
from lesam.lab.runs.statistics import Spread

Quantity = Callable[[RunFolder], float | None]


def last(name: str, scale: float = 1.0) -> Quantity:
    """A field of the last row of the metrics."""

    def read(run: RunFolder) -> float | None:
        value = _summary(run)["last"].get(name)
        return None if value is None else value * scale

    return read


last_test = last("test_accuracy", 100.0)
"""Test accuracy of the last epoch, in percent."""


def best_test(run: RunFolder) -> float | None:
    """Test accuracy of the best epoch, chosen on the test set, in percent."""
    accuracy: float = _summary(run)["best_test_selected"]["test_accuracy"]
    return accuracy * 100


ACCURACIES: Mapping[str, Quantity] = {
    "Test accuracy of the last epoch (%)": last_test,
    "Test accuracy of the best evaluated epoch, chosen on the test set (%)": best_test,
}

OVER_SEEDS = "Mean and sample standard deviation (n - 1) over the seeds."


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Trains every variant on every recipe and tabulates quantities with the paper's figures beside them."""

    name: str
    title: str
    rows: Mapping[str, Variant]
    columns: Mapping[str, str]
    quantities: Mapping[str, Quantity] = field(default_factory=lambda: ACCURACIES)
    paper: Callable[[str, str, str], Figure | None] = no_paper
    """Takes row, column and quantity."""
    label: Callable[[Request, Row], str] = lambda request, row: str(row["row"])
    """What tables call a row, where that follows from its runs; ``rows`` name it in results."""
    average: str | None = None
    """Heading of a last column with the mean of the others, where the paper has one."""
    draw: Callable[[Request, Sequence[Cell]], Mapping[str, Drawing]] = lambda request, cells: {}
    remarks: Callable[[Request, Sequence[Cell]], Sequence[str]] = lambda request, cells: ()

    @property
    def recipes(self) -> tuple[str, ...]:
        """Those of its columns, as the rows have them."""
        used = (variant.recipe(recipe) for recipe in self.columns.values() for variant in self.rows.values())
        return tuple(dict.fromkeys(used))

    @property
    def searches(self) -> bool:
        """All its runs are known beforehand."""
        return False

    def seeds(self, scale: str) -> tuple[int, ...]:
        """Three, or one at the smoke scale."""
        return few_seeds(scale)

    def places(self, request: Request) -> Iterator[tuple[str, str, Variant]]:
        """Row, column and variant of what is asked for, where the recipe has the scale."""
        for column, recipe in self.columns.items():
            for row, variant in self.rows.items():
                named = variant.recipe(recipe)
                asked = not request.recipes or named in request.recipes
                if request.methods and variant.method not in request.methods:
                    continue
                if asked and recipes.has_scale(named, request.scale):
                    yield row, column, variant

    def plan(self, request: Request) -> list[Planned]:
        """One run for each seed, variant and recipe."""
        return [
            Planned(
                row=row,
                column=column,
                config=variant.config(self.columns[column], request.scale, seed, request.changes),
            )
            for row, column, variant in self.places(request)
            for seed in request.seeds
        ]

    def report(self, request: Request, cells: Sequence[Cell], kept: Sequence[Mapping[str, Any]] = ()) -> Report:
        """Read the quantities of all cells; kept rows stand beside them."""
        rows = self._joined([self._row(cell) for cell in cells], kept)
        labels = {row["row"]: self.label(request, row) for row in rows}
        spreads = {(row["row"], row["column"]): _spreads(row["values"]) for row in rows}
        if self.average is not None:
            spreads |= self._averages(rows)
        lost = {(row["row"], row["column"]): row["diverged"] for row in rows if row["diverged"]}
        seeds = {(row["row"], row["column"]): len(row["seeds"]) for row in rows}
        return Report(
            tables={quantity: self._table(quantity, labels, spreads, lost, seeds) for quantity in self.quantities},
            rows=[
                *rows,
                *(self._average_row(row, rows, spreads[row, str(self.average)]) for row in self._averaged(spreads)),
            ],
            figures=self.draw(request, cells),
            notes=[
                *([OVER_SEEDS] if len(request.seeds) > 1 else []),
                *(f"{LOST} {row}, {column}: {', '.join(runs)} diverged." for (row, column), runs in lost.items()),
                *self._guesses(rows),
                *self.remarks(request, cells),
            ],
        )

    def _joined(self, rows: Sequence[Row], kept: Sequence[Mapping[str, Any]]) -> list[Row]:
        """Rows in the order of the table, seeds of the same place together."""
        found = {(row["row"], row["column"]): dict(row) for row in rows}
        for row in kept:
            place = (row["row"], row.get("column"))
            if place not in found:
                found[place] = dict(row)
                continue
            ours = found[place]
            ours["values"] = {name: [*of, *row["values"].get(name, ())] for name, of in ours["values"].items()}
            ours |= {name: [*ours[name], *row[name]] for name in ("seeds", "runs", "diverged")}
        order = [(row, column) for column in self.columns for row in self.rows]
        return [found[place] for place in order if place in found]

    def _averages(self, rows: Sequence[Row]) -> dict[Any, Any]:
        """Seed by seed the mean over columns, for the seeds that a row has in all of them."""
        found = {}
        for label in self.rows:
            columns = [row for row in rows if row["row"] == label]
            seeds = sorted(set.intersection(*(set(row["seeds"]) for row in columns))) if columns else []
            if len(columns) < len(self.columns) or not seeds:
                continue
            means: dict[str, list[float | None]] = {}
            for name in self.quantities:
                by_seed = [[row["values"][name][row["seeds"].index(seed)] for row in columns] for seed in seeds]
                means[name] = [None if None in values else Spread.of(values).mean for values in by_seed]
            found[label, self.average] = _spreads(means)
        return found

    def _averaged(self, spreads: Mapping[tuple[str, Any], Any]) -> list[str]:
        return [row for row in self.rows if self.average is not None and (row, self.average) in spreads]

    def _average_row(self, row: str, rows: Sequence[Row], spreads: Mapping[str, Spread]) -> Row:
        published = {name: self.paper(row, str(self.average), name) for name in self.quantities}
        return {
            "row": row,
            "column": self.average,
            "mean": {name: spread.mean for name, spread in spreads.items()},
            "std": {name: spread.std for name, spread in spreads.items()},
            "paper": {name: figure for name, figure in published.items() if figure is not None},
            "runs": [run for of in rows if of["row"] == row for run in of["runs"]],
        }

    def _table(
        self,
        quantity: str,
        labels: Mapping[str, str],
        spreads: Mapping[tuple[str, Any], Mapping[str, Spread]],
        lost: Mapping[tuple[str, str], Sequence[str]],
        seeds: Mapping[tuple[str, str], int],
    ) -> list[list[str]]:
        columns = [column for column in self._headings() if any(place[1] == column for place in spreads)]
        rows = [row for row in self.rows if any(place[0] == row for place in spreads)]
        published = {(row, column): self.paper(row, column, quantity) for row in rows for column in columns}
        with_paper = [column for column in columns if any(published[row, column] for row in rows)]
        heads = {column: f"{column} {MARK}" if self._ours(column) else column for column in columns}
        table = [["", *(text for column in columns for text in (heads[column], *["paper"] * (column in with_paper)))]]
        for row in rows:
            line = [labels[row]]
            for column in columns:
                spread = spreads.get((row, column), {}).get(quantity)
                text = "" if spread is None else spread.text(1.0) if "%" in quantity else spread.short()
                if spread is not None and spread.n < seeds.get((row, column), 0):  # some runs have no such number
                    text += f" (n = {spread.n} of {seeds[row, column]})"
                marks = (MARK if text and self._guess(row, column) else "", LOST if (row, column) in lost else "")
                line.append(" ".join(filter(None, (text, *marks))))
                if column in with_paper:
                    line.append(figure_text(published[row, column]))
            table.append(line)
        return table

    def _ours(self, column: str) -> str:
        """Settings of a column's recipes that the paper does not give; those of all columns for their average."""
        named = [self.columns[column]] if column in self.columns else list(self.columns.values())
        used = (variant.recipe(recipe) for recipe in named for variant in self.rows.values())
        return max(map(recipes.ours, used), key=len, default="")

    def _guesses(self, rows: Sequence[Row]) -> list[str]:
        """What the marks in headings and cells mean."""
        found: dict[str, list[str]] = {}
        for column in dict.fromkeys(row["column"] for row in rows):
            found.setdefault(self._ours(column), []).append(column)
        for row in rows:
            found.setdefault(self._guess(row["row"], row["column"]), []).append(f"{row['row']} on {row['column']}")
        return [f"{MARK} {', '.join(places)}: {not_given(text)}" for text, places in found.items() if text]

    def _guess(self, row: str, column: str) -> str:
        """Settings of a row's method that the paper does not give."""
        if column not in self.columns:
            return ""
        variant = self.rows[row]
        return recipes.guesses(variant.recipe(self.columns[column])).get(variant.method, "")

    def _headings(self) -> list[str]:
        return [*self.columns, *([] if self.average is None else [self.average])]

    def _row(self, cell: Cell) -> Row:
        config = cell.configs[0]
        published = {name: self.paper(cell.row, cell.column, name) for name in self.quantities}
        return {
            "row": cell.row,
            "column": cell.column,
            "recipe": config.recipe,
            "method": config.method,
            "settings": settings(config),
            "not_given_by_paper": recipes.ours(config.recipe, config.method),
            "seeds": [one.seed for one in cell.configs],
            "values": {name: [read(run) for run in cell.runs] for name, read in self.quantities.items()},
            "paper": {name: figure for name, figure in published.items() if figure is not None},
            "runs": [run.path.name for run in cell.runs],
            "diverged": [run.path.name for run in cell.runs if has_diverged(run.summary())],
        }


def _spreads(values: Mapping[str, Sequence[float | None]]) -> dict[str, Spread]:
    known = {name: [value for value in found if value is not None] for name, found in values.items()}
    return {name: Spread.of(found) for name, found in known.items() if found}


def _summary(run: RunFolder) -> Row:
    summary = run.summary()
    if summary is None:
        raise ValueError(f"{run.path} is not finished")
    return summary
