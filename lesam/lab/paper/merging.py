"""Parts of an experiment as one: what an earlier result holds joins what was asked for now.

A result lists its runs by row, column and seed. A later part adds its own, and tables and figures are made again from
all of them. Numbers whose run folders are gone are kept as they were written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lesam.lab.config.run import RunConfig
from lesam.lab.paper.experiment import Cell, Experiment, Request
from lesam.lab.runs.folder import Row, RunFolder
from lesam.lab.sweeps.tuning import SEARCH_SEEDS

Place = tuple[str, str]
Found = dict[int, tuple[RunConfig, RunFolder]]
"""Repetitions by seed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Merged:
    """All that a result holds after a part was added."""

    cells: list[Cell]
    kept: list[Row]
    """Rows of the earlier result that cannot be read from run folders again."""
    superseded: list[Row]
    """Rows of the earlier result whose runs had other settings than those of the same place now."""
    missing: list[str]
    """Runs of the whole experiment that are not there, as "row, column, seed"."""


def deciding(experiment: Experiment, request: Request) -> list[str]:
    """The overrides of a request that change the outcome of a run; all of them where there are no runs to ask."""
    whole = replace(request, methods=(), recipes=())
    planned = [run.config.fingerprint for run in experiment.plan(whole)]
    return [
        text
        for number, text in enumerate(request.changes)
        if not planned or planned != _without(experiment, whole, number)
    ]


def _without(experiment: Experiment, request: Request, number: int) -> list[str]:
    fewer = tuple(text for other, text in enumerate(request.changes) if other != number)
    return [run.config.fingerprint for run in experiment.plan(replace(request, changes=fewer))]


def merge(experiment: Experiment, request: Request, cells: Sequence[Cell], earlier: Mapping[str, Any]) -> Merged:
    """The cells of this request and of an earlier result (``{}`` for none), in the experiment's order."""
    now: dict[Place, Found] = {
        (cell.row, cell.column): {
            config.seed: (config, run) for config, run in zip(cell.configs, cell.runs, strict=True)
        }
        for cell in cells
    }
    settings = {place: next(iter(found.values()))[0].cell for place, found in now.items()}
    whole = {(run.row, run.column): None for run in experiment.plan(replace(request, methods=(), recipes=()))}
    gone: dict[Place, list[int]] = {}
    other: dict[Place, list[int]] = {}
    for entry in earlier.get("cells", ()):
        place = (entry["row"], entry["column"])
        for known in entry["runs"]:
            seed, name = known["seed"], known["folder"]
            run = _locate(name, [request.runs, Path(known["in"])])
            if seed in now.get(place, {}):
                if now[place][seed][1].path.name != name:
                    other.setdefault(place, []).append(seed)
            elif place not in whole or known["cell"] != settings.setdefault(place, known["cell"]):
                other.setdefault(place, []).append(seed)
            elif run is None:
                gone.setdefault(place, []).append(seed)
            else:
                now.setdefault(place, {})[seed] = (run.config(), run)
    united = [
        Cell(row=row, column=column, configs=tuple(one[0] for one in found), runs=tuple(one[1] for one in found))
        for row, column in whole
        if (found := [now.get((row, column), {})[seed] for seed in sorted(now.get((row, column), {}))])
    ]
    there = {(place, seed) for found in (now, gone) for place, seeds in found.items() for seed in seeds}
    # Trials have seeds of their own, which no repetition may have.
    seeds = {seed for _, seed in there} - (set(SEARCH_SEEDS) if experiment.searches else set())
    every = tuple(sorted(seeds)) or request.seeds
    wanted = experiment.plan(replace(request, methods=(), recipes=(), seeds=every))
    return Merged(
        cells=united,
        kept=_rows(earlier, gone) if whole else list(earlier.get("rows", ())),
        superseded=[*earlier.get("superseded", ()), *_rows(earlier, other)],
        missing=[
            f"{run.row}, {run.column}, seed {run.config.seed}"
            for run in wanted
            if not run.recorded and ((run.row, run.column), run.config.seed) not in there
        ],
    )


def listed(cells: Sequence[Cell], earlier: Mapping[str, Any], kept: Sequence[Row]) -> list[Row]:
    """The runs behind a result, for :func:`merge` to find again."""
    found = [
        {
            "row": cell.row,
            "column": cell.column,
            "runs": [
                {
                    "seed": config.seed,
                    "cell": config.cell,
                    "folder": run.path.name,
                    "in": str(run.path.parent.resolve()),
                }
                for config, run in zip(cell.configs, cell.runs, strict=True)
            ],
        }
        for cell in cells
    ]
    names = {name for row in kept for name in row.get("runs", ())}
    for entry in earlier.get("cells", ()):
        lost = [run for run in entry["runs"] if run["folder"] in names]
        if lost:
            found.append({**entry, "runs": lost})
    return found


def _locate(name: str, parents: Sequence[Path]) -> RunFolder | None:
    """A finished run by the name of its folder."""
    for parent in parents:
        if (parent / name / "summary.json").is_file():
            return RunFolder(parent / name)
    return None


def _rows(earlier: Mapping[str, Any], places: Mapping[Place, Sequence[int]]) -> list[Row]:
    """What an earlier result says of some repetitions of some places."""
    columns = {entry["row"]: entry["column"] for entry in earlier.get("cells", ())}
    found = []
    for row in earlier.get("rows", ()):
        wanted = places.get((row["row"], row.get("column", columns.get(row["row"], ""))), ())
        at = [number for number, seed in enumerate(row.get("seeds", ())) if seed in wanted]
        if not at:
            continue
        part = {**row, "seeds": [row["seeds"][n] for n in at], "runs": [row["runs"][n] for n in at]}
        if "values" in row:
            part["values"] = {name: [values[n] for n in at] for name, values in row["values"].items()}
        if "diverged" in row:
            part["diverged"] = [name for name in row["diverged"] if name in part["runs"]]
        found.append(part)
    return found
