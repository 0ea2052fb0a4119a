"""Brings the runs of an experiment to their end: what is finished is reused, what is missing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from lesam.lab.execution.display import Display
from lesam.lab.execution.jobs import Event, Executor, Job
from lesam.lab.paper.experiment import Cell, Planned
from lesam.lab.runs.folder import RunFolder


def train_all(planned: Sequence[Planned], runs: Path, executor: Executor) -> tuple[list[Cell], list[str]]:
    """Train what is not finished, and return the finished runs by place, repetitions together, and what failed."""
    distinct = {run.config.fingerprint: run.config for run in planned}
    summaries: dict[str, Mapping[str, Any]] = {}
    failures: list[str] = []
    with nullcontext() if executor.speaks else Display(len(distinct)) as display:

        def record(event: Event) -> None:
            if event.summary is not None:
                summaries[event.job.key] = event.summary
            elif event.kind == "failed":
                failures.append(f"{event.job.config.folder_name}: {event.error}")
            if display is not None:
                display(event)

        executor.run([Job(key=key, config=config) for key, config in distinct.items()], record)
    places: dict[tuple[str, str], list[RunFolder]] = {}
    for run in planned:
        if run.config.fingerprint in summaries:
            folder = RunFolder(runs / summaries[run.config.fingerprint]["folder"])
            places.setdefault((run.row, run.column), []).append(folder)
    cells = [
        # What was trained, which has the number of workers where that decides the outcome.
        Cell(row=row, column=column, configs=tuple(folder.config() for folder in folders), runs=tuple(folders))
        for (row, column), folders in places.items()
    ]
    return cells, failures
