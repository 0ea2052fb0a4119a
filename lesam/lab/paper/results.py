"""The folder of an experiment's result: ``result.json``, ``table.md`` and figures, put in place all at once."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lesam.lab import console
from lesam.lab.files import whole_folder
from lesam.lab.paper.experiment import Experiment, Report, Request
from lesam.lab.runs import environment


def write(experiment: Experiment, request: Request, report: Report, output: Path) -> Path:
    """Write a result to ``output/NAME``, replacing an older one only when all of the new one is on the disk."""
    result = {
        "experiment": experiment.name,
        "title": experiment.title,
        "scale": request.scale,
        "seeds": list(request.seeds),
        "part": request.part,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment.describe(),
        "runs": str(request.runs),
        "rows": list(report.rows),
        "notes": list(report.notes),
    }
    folder = output / experiment.name
    with whole_folder(folder) as temporary:
        for number, (name, drawing) in enumerate(report.figures.items()):
            file = temporary / ("figure" if number == 0 else name)
            for ending in (".png", ".pdf"):
                drawing.savefig(file.with_suffix(ending), dpi=150, bbox_inches="tight")
        if report.tables:
            (temporary / "table.md").write_text(markdown(experiment, request, report))
        (temporary / "result.json").write_text(json.dumps(_plain(result), indent=2) + "\n")
    return folder


def markdown(experiment: Experiment, request: Request, report: Report) -> str:
    """All tables of a report with their headings and notes."""
    lines = [f"# {experiment.title}", "", f"Scale: {request.scale}. Seeds: {' '.join(map(str, request.seeds))}.", ""]
    if request.part:
        lines += ["Only " + "; ".join(f"{name}: {', '.join(of)}" for name, of in request.part.items()) + ".", ""]
    for heading, rows in report.tables.items():
        lines += [f"## {heading}", "", console.markdown(rows)]
    with_paper = any(name.startswith("paper") for rows in report.tables.values() for name in rows[0])
    if with_paper and (request.scale != "paper" or request.changes):
        lines.append('The columns headed "paper" hold the paper\'s figures for its own setting: not to be compared.')
    lines += list(report.notes)
    return "\n".join(lines) + "\n"


def state(experiment: Experiment, request: Request, output: Path) -> str:
    """How far an experiment is: its result, or how many of its runs are finished."""
    try:
        result = json.loads((output / experiment.name / "result.json").read_text())
    except (OSError, ValueError):
        result = {}
    planned = {run.config.folder_name for run in experiment.plan(request)}
    done = sum((request.runs / name / "summary.json").exists() for name in planned)
    runs = f"{done} of {len(planned)} runs finished" if planned else "needs no runs"
    asked = (request.scale, list(request.seeds), request.part)
    if (result.get("scale"), result.get("seeds"), result.get("part")) == asked:
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
