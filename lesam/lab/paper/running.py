"""Brings the runs of an experiment to their end: what is finished is reused, what is missing is trained."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric

from lesam.lab.config.run import RunConfig, SystemConfig
from lesam.lab.paper.experiment import Cell, Planned
from lesam.lab.runs.folder import RunFolder
from lesam.lab.training.fabric import make_fabric


def train_all(planned: Sequence[Planned], runs: Path, *, jobs: int) -> list[Cell]:
    """Train what is not finished, and return the runs by place, repetitions together."""
    from lesam.lab.sweeps.display import Display
    from lesam.lab.sweeps.pool import Job, train_jobs

    distinct = {run.config.fingerprint: run.config for run in planned}
    if jobs == 1:
        summaries = _one_by_one(distinct, runs)
    else:
        threads = max(1, (os.cpu_count() or 1) // jobs)
        waiting = [Job(key=key, config=config) for key, config in distinct.items()]
        with Display(len(waiting)) as display:
            summaries = train_jobs(waiting, runs=runs, jobs=jobs, threads=threads, progress=display)
    places: dict[tuple[str, str], list[RunConfig]] = {}
    for run in planned:
        places.setdefault((run.row, run.column), []).append(run.config)
    return [
        Cell(
            row=row,
            column=column,
            configs=tuple(configs),
            runs=tuple(RunFolder(runs / summaries[config.fingerprint]["folder"]) for config in configs),
        )
        for (row, column), configs in places.items()
    ]


def _one_by_one(configs: Mapping[str, RunConfig], runs: Path) -> dict[str, Mapping[str, Any]]:
    """Train in this process, with its progress bars and all its devices."""
    from lesam.lab.training.loop import train

    if not configs:
        return {}
    fabric = _launched(next(iter(configs.values())).system)
    return {key: train(config, runs=runs, fabric=fabric) for key, config in configs.items()}


@cache
def _launched(system: SystemConfig) -> Fabric:
    """One Fabric for all experiments of a command: processes can be launched only once."""
    return make_fabric(system)
