"""Nothing is trained: only what is finished already is used."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lesam.lab.execution.jobs import Event, Job, Progress
from lesam.lab.runs.folder import RunFolder
from lesam.lab.training.fabric import processes
from lesam.lab.training.layout import laid_out


class OnlyFinished:
    """Tells which jobs are finished, and stops at the others."""

    speaks = True

    def __init__(self, *, runs: Path | str) -> None:
        """Name where run folders lie."""
        self._runs = runs

    def run(self, jobs: Iterable[Job | None], progress: Progress) -> None:
        """Look all jobs up."""
        for job in filter(None, jobs):
            config = laid_out(job.config, processes(job.config.system))
            summary = RunFolder.of(config, self._runs).summary()
            progress(Event(job=job, kind="stopped" if summary is None else "done", summary=summary))
