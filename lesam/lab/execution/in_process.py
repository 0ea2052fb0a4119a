"""One run after another in this process, with its progress bars and all its devices."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lesam.lab.config.run import SystemConfig
from lesam.lab.execution.jobs import Agenda, Event, Job, Progress
from lesam.lab.runs.folder import RunBusyError, RunFolder
from lesam.lab.training.fabric import make_fabric
from lesam.lab.training.failures import told
from lesam.lab.training.interrupt import RunInterruptedError
from lesam.lab.training.loop import train

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class InProcess:
    """Trains jobs here; the processes of a distributed launch all do, together."""

    speaks = True

    def __init__(self, *, runs: Path | str) -> None:
        """Name where run folders lie."""
        self._runs = runs

    def run(self, jobs: Iterable[Job | None], progress: Progress) -> None:
        """Train all jobs."""
        agenda, waited_for = Agenda(jobs), set[str]()
        while True:
            job = agenda.next()
            if job is None and agenda.pause is None:
                return
            if job is None:
                time.sleep(agenda.pause or 0.0)
                continue
            progress(Event(job=job, kind="started"))
            fabric = _launched(job.config.system)
            try:
                summary = train(job.config, runs=self._runs, fabric=fabric)
            except RunBusyError:
                agenda.put_off(job)
                if (name := job.config.folder_name) not in waited_for:
                    print(f"{name} is trained by another process; waiting for it", flush=True)
                    waited_for.add(name)
            except RunInterruptedError:
                raise
            except Exception as error:
                if fabric.world_size > 1:  # the other workers may be elsewhere
                    raise
                folder = RunFolder.of(job.config, self._runs)
                print(f"{job.config.folder_name} failed; the other runs continue", flush=True)
                progress(Event(job=job, kind="failed", error=told(error, folder)))
            else:
                progress(Event(job=job, kind="done", summary=summary))


@cache
def _launched(system: SystemConfig) -> Fabric:
    """One Fabric for all experiments of a command: processes can be launched only once."""
    return make_fabric(system)
