"""The folder of an experiment's result: ``result.json``, ``table.md`` and figures; parts join what is there."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lesam.flatness.figures import drawn
from lesam.lab import console, recipes
from lesam.lab.files import locked, write_atomically
from lesam.lab.paper import merging
from lesam.lab.paper.experiment import Cell, Experiment, Report, Request
from lesam.lab.paper.layouts import by_number, finished
from lesam.lab.paper.scales import anything_left
from lesam.lab.paper.stage import groups_of
from lesam.lab.recipes.published import same_setting
from lesam.lab.report.plots import caption
from lesam.lab.runs import environment
from lesam.lab.sweeps.tuning import SEARCH_SEEDS

LISTS = ("cells", "rows", "changes")
"""Parts of a result that are lists."""


def place(experiment: Experiment, request: Request, output: Path) -> Path:
    """The folder of a result."""
    return output / experiment.name / request.scale


def check(experiment: Experiment, request: Request, output: Path) -> None:
    """Refuse to put runs with other settings beside those of an earlier result."""
    _check(_read(place(experiment, request, output)), merging.deciding(experiment, request), output)


def write(
    experiment: Experiment, request: Request, cells: Sequence[Cell], output: Path, remarks: Sequence[str] = ()
) -> Path:
    """Evaluate runs and write ``output/NAME/SCALE``, together with what an earlier result there holds.

    Processes that write parts of the same experiment wait for each other, so none loses another's rows. Every file is
    replaced whole, ``result.json`` last; no file is ever deleted. ``remarks`` are sentences for the notes.
    """
    folder = place(experiment, request, output)
    # Before the lock: measuring may take hours, and its answers stay in the run folders.
    own = experiment.report(request, cells) if cells else None
    with locked(folder / ".lock"):
        earlier, changes = _read(folder), merging.deciding(experiment, request)
        _check(earlier, changes, output)
        merged = merging.merge(experiment, request, cells, earlier)
        seeds = {config.seed for cell in merged.cells for config in cell.configs}
        seeds |= {seed for row in merged.kept for seed in row.get("seeds", ())}
        seeds -= set(SEARCH_SEEDS) if experiment.searches else set()
        seeds |= set(request.seeds) if request.records is not None else set()  # recorded runs are in no cell
        whole = replace(request, seeds=tuple(sorted(seeds)) or request.seeds)
        if own is None or merged.cells != list(cells) or merged.kept:
            own = experiment.report(whole, merged.cells, merged.kept)
        noted = replace(own, notes=[*own.notes, *_notes(merged), *remarks])
        _put(folder, experiment, whole, noted, merged, earlier, changes)
    return folder


def _put(
    folder: Path,
    experiment: Experiment,
    request: Request,
    report: Report,
    merged: merging.Merged,
    earlier: dict[str, Any],
    changes: list[str],
) -> None:
    # Numbers that no report could show again stay in the file.
    shown = {(row["row"], row.get("column")) for row in report.rows}
    kept = [row for row in merged.kept if (row["row"], row.get("column")) not in shown]
    result = {
        "experiment": experiment.name,
        "title": experiment.title,
        "scale": request.scale,
        "seeds": list(request.seeds),
        "part": {"missing": merged.missing} if merged.missing else {},
        "changes": changes,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment.describe(),
        "runs": str(request.runs),
        "rows": [*report.rows, *kept],
        "notes": list(report.notes),
        "cells": merging.listed(merged.cells, earlier, merged.kept),
        "superseded": merged.superseded,
    }
    for number, (name, drawing) in enumerate(report.figures.items()):
        caption(drawing, groups_of(merged.cells))
        for ending in ("png", "pdf"):
            image = drawn(drawing, ending, bbox_inches="tight")
            write_atomically(folder / f"{'figure' if number == 0 else name}.{ending}", image)
    if report.tables:
        write_atomically(
            folder / "table.md", markdown(experiment, replace(request, changes=tuple(changes)), report, merged.missing)
        )
    write_atomically(folder / "result.json", json.dumps(_plain(result), indent=2) + "\n")


def _read(folder: Path) -> dict[str, Any]:
    """The result in a folder, ``{}`` where there is none yet."""
    file = folder / "result.json"
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(found.get(name, []), list) for name in LISTS):
        raise ValueError(f"{file} is not readable and will not be overwritten; move it away, or give another -o")
    return found


def _check(earlier: dict[str, Any], changes: list[str], output: Path) -> None:
    if earlier and earlier.get("changes", []) != changes:
        theirs, ours = (", ".join(of) or "no changes" for of in (earlier.get("changes", []), changes))
        raise ValueError(
            f"{output} has a result of {earlier.get('experiment')} at scale {earlier.get('scale')} with {theirs}, and "
            f"this one has {ours}: they do not belong in one table; give another folder with -o (and --runs "
            f"{earlier.get('runs')} to share runs)"
        )


def _notes(merged: merging.Merged) -> list[str]:
    found = []
    lost = [f"{row['row']} (seeds {', '.join(map(str, row['seeds']))})" for row in merged.kept if row.get("seeds")]
    if lost:
        found.append(f"Kept from an earlier result, whose run folders are no longer there: {'; '.join(lost)}.")
    numbers = {len(cell.configs) for cell in merged.cells}
    if len(numbers) > 1:
        most = max(numbers)
        fewer = [f"{c.row}, {c.column} ({len(c.configs)})" for c in merged.cells if len(c.configs) < most]
        found.append(f"Fewer than {most} seeds: {'; '.join(fewer)}.")
    return found


def markdown(experiment: Experiment, request: Request, report: Report, missing: Sequence[str] = ()) -> str:
    """All tables of a report with their headings and notes."""
    lines = [f"# {experiment.title}", "", f"Scale: {request.scale}. Seeds: {' '.join(map(str, request.seeds))}.", ""]
    if request.changes:
        lines += [f"Changed in every run: {', '.join(request.changes)}.", ""]
    if missing:
        lines += [f"A part: {len(missing)} of the experiment's runs are missing (`result.json` names them).", ""]
    for heading, rows in report.tables.items():
        lines += [f"## {heading}", "", console.markdown(rows)]
    with_paper = any(name.startswith("paper") for rows in report.tables.values() for name in rows[0])
    if with_paper and not _as_published(experiment, request):
        lines.append('The columns headed "paper" hold the paper\'s figures for its own setting: not to be compared.')
    lines += list(report.notes)
    return "\n".join(lines) + "\n"


def _as_published(experiment: Experiment, request: Request) -> bool:
    """Whether runs have the paper's setting: its scale, and no change but to what the paper leaves open (Cutout)."""
    plain = experiment.plan(replace(request, changes=()))
    pairs = zip(experiment.plan(request), plain, strict=True)
    return request.scale == "paper" and (
        all(same_setting(run.config, paper.config) for run, paper in pairs) if plain else not request.changes
    )


def state(experiment: Experiment, request: Request, output: Path) -> str:
    """How far an experiment is: its result, or how many of its runs are finished, and what it leaves out."""
    if not anything_left(experiment, request.scale):
        return "not at this scale"
    try:
        result = _read(place(experiment, request, output))
    except ValueError:
        result = {}
    plan = experiment.plan(request)
    planned = {run.config.folder_name: run.config for run in plan if not run.recorded}
    known = {run["folder"] for cell in result.get("cells", ()) for run in cell["runs"]}
    layouts = {name: finished(config, request.runs) for name, config in planned.items()}
    workers = [max(there) for there in layouts.values() if there]
    runs = f"{len(workers)} of {len(planned)} runs finished" if planned else "needs no runs"
    if recorded := sum(run.recorded for run in plan):
        runs += f", {recorded} others have a record"
    if experiment.searches and planned:
        runs += "; more follow from what they choose" if len(workers) < len(planned) else ""
    if absent := [recipe for recipe in experiment.recipes if not recipes.has_scale(recipe, request.scale)]:
        runs += f", without {', '.join(absent)}"
    if any(number > 1 for number in workers):
        runs += f", {by_number(workers)}"
    shown = [name in known or any(run.path.name in known for run in layouts[name].values()) for name in planned]
    if result and all(shown):
        return f"done {result['written'][:16].replace('T', ' ')}, {runs}"
    return runs


def _plain(value: Any) -> Any:
    """JSON has no NaN: what is not finite becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
