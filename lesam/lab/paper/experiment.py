"""The shape of an experiment: runs in rows and columns, and what is read from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from matplotlib.figure import Figure as Drawing

from lesam.lab import recipes
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import change, override
from lesam.lab.recipes.recipe import Figure
from lesam.lab.runs.folder import RunFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A row: a method, and what is changed in its recipe."""

    method: str
    changes: Callable[[RunConfig], Mapping[str, Any]] = lambda config: {}
    """Fields to change, by dotted path; they may depend on the configuration that the recipe gives."""
    recipe: Callable[[str], str] = str
    """From the column's recipe to this row's, where they differ."""

    def config(self, recipe: str, scale: str, seed: int, more: Sequence[str] = ()) -> RunConfig:
        """The run of this row for a recipe."""
        asked = override(recipes.build(self.recipe(recipe), method=self.method, scale=scale, seed=seed), more)
        return override(change(asked, self.changes(asked)), more)


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A run that an experiment needs, and its place in it."""

    row: str
    column: str
    config: RunConfig
    order: int = 0
    """Runs of a smaller number are trained first; the plan is made again before those of a larger one."""
    recorded: bool = False
    """Whether a record of it stands for it, so that it is not trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """The finished repetitions at one place."""

    row: str
    column: str
    configs: tuple[RunConfig, ...]
    runs: tuple[RunFolder, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What the user asked for."""

    scale: str
    seeds: tuple[int, ...] = ()
    """Empty for the experiment's own."""
    runs: Path
    methods: tuple[str, ...] = ()
    """Only these methods; empty means all."""
    recipes: tuple[str, ...] = ()
    """Only these recipes; empty means all."""
    changes: tuple[str, ...] = ()
    """Overrides of every run (``section.field=value``)."""
    keep_for: tuple[str, ...] = ()
    """Experiments whose checkpoints are kept as well, where they share runs with this one."""
    solver: Literal["lanczos", "power"] = "lanczos"
    """How eigenvalues are found where an experiment measures them; power iteration is what the paper names."""
    records: Path | None = None
    """Folder of the records of contests: a run that has one counts as finished."""
    progress: Callable[[str], None] = print
    """Called with a sentence as the experiment advances."""

    def of(self, experiment: Experiment) -> Request:
        """The same with the experiment's own seeds where the user names none."""
        return self if self.seeds else replace(self, seeds=experiment.seeds(self.scale))

    @property
    def part(self) -> dict[str, list[str]]:
        """In what the request asks for less than the whole experiment, or for something else."""
        given = {"methods": self.methods, "recipes": self.recipes, "changes": self.changes}
        return {name: list(values) for name, values in given.items() if values}


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What an experiment found: the tables to print, everything behind them, and figures."""

    tables: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    """Tables by heading, each with its headings first."""
    rows: Sequence[Mapping[str, Any]] = ()
    """The same for machines; every row names its run folders."""
    figures: Mapping[str, Drawing] = field(default_factory=dict)
    """Figures by file name, the first one is the experiment's."""
    notes: Sequence[str] = ()


class Experiment(Protocol):
    """One table or figure of the paper."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""

    @property
    def title(self) -> str:
        """What it shows."""

    @property
    def recipes(self) -> tuple[str, ...]:
        """The recipes of all its runs; those without the request's scale are no part of its plan."""

    @property
    def searches(self) -> bool:
        """Whether its plan grows: some runs follow from what others choose."""

    def seeds(self, scale: str) -> tuple[int, ...]:
        """Its seeds where the user names none."""

    def plan(self, request: Request) -> list[Planned]:
        """The runs it needs; it may grow with what is finished in ``request.runs``."""

    def report(self, request: Request, cells: Sequence[Cell], kept: Sequence[Mapping[str, Any]] = ()) -> Report:
        """Evaluate the finished runs; ``kept`` are rows of an earlier result whose runs cannot be read again."""


def few_seeds(scale: str) -> tuple[int, ...]:
    """One repetition to see the machinery, three for a table."""
    return (0,) if scale == "smoke" else (0, 1, 2)


def no_paper(row: str, column: str, quantity: str) -> Figure | None:
    """The paper has no figure for this."""
    return None
