"""Brings the runs of an experiment to their end: what is finished is reused, what is missing is trained."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.fabric import Fabric

from lesam.lab.config.run import RunConfig, SystemConfig
from lesam.lab.paper.experiment import Cell, Planned
from lesam.lab.runs.folder import RunBusyError, RunFolder
from lesam.lab.training.fabric import make_fabric

if TYPE_CHECKING:
    from lesam.lab.sweeps.pool import Event


def train_all(
    planned: Sequence[Planned], runs: Path, *, jobs: int, progress: Callable[[str], None] = print
) -> tuple[list[Cell], list[str]]:
    """Train what is not finished, and return the finished runs by place, repetitions together, and what failed.

    A run that another command is training is put off until it is finished there, or its process has died.
    """
    from lesam.lab.sweeps.display import Display
    from lesam.lab.sweeps.pool import Job, Pool

    distinct = {run.config.fingerprint: run.config for run in planned}
    summaries: dict[str, Mapping[str, Any]] = {}
    failures: list[str] = []
    if jobs == 1:
        _one_by_one(distinct, runs, summaries, failures, progress)
    else:
        threads = max(1, (os.cpu_count() or 1) // jobs)
        waiting = [Job(key=key, config=config) for key, config in distinct.items()]
        with Display(len(waiting)) as display:

            def record(event: Event) -> None:
                if event.summary is not None:
                    summaries[event.job.key] = event.summary
                elif event.kind == "failed":
                    failures.append(f"{event.job.config.folder_name}: {event.error}")
                display(event)

            Pool(runs=runs, jobs=jobs, threads=threads).run(waiting, record)
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


def _one_by_one(
    configs: Mapping[str, RunConfig],
    runs: Path,
    summaries: dict[str, Mapping[str, Any]],
    failures: list[str],
    progress: Callable[[str], None],
) -> None:
    """Train in this process, with its progress bars and all its devices."""
    from lesam.lab.sweeps.pool import PAUSE
    from lesam.lab.training.failures import told
    from lesam.lab.training.interrupt import RunInterruptedError
    from lesam.lab.training.loop import train

    waiting, said = dict(configs), set[str]()
    while waiting:
        busy: dict[str, RunConfig] = {}
        for key, config in waiting.items():
            fabric = _launched(config.system)
            try:
                summaries[key] = train(config, runs=runs, fabric=fabric)
            except RunBusyError:
                busy[key] = config
            except RunInterruptedError:
                raise
            except Exception as error:
                if fabric.world_size > 1:  # the other workers may be elsewhere
                    raise
                failures.append(f"{config.folder_name}: {told(error, RunFolder.of(config, runs))}")
                progress(f"{config.folder_name} failed; the other runs continue")
        for key in busy.keys() - said:
            progress(f"{busy[key].folder_name} is trained by another process; waiting for it")
            said.add(key)
        if len(busy) == len(waiting):
            time.sleep(PAUSE)
        waiting = busy


@cache
def _launched(system: SystemConfig) -> Fabric:
    """One Fabric for all experiments of a command: processes can be launched only once."""
    return make_fabric(system)
