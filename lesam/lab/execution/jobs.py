"""Runs to be trained, what happens to them, and who trains them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from lesam.lab.config.run import RunConfig
from lesam.lab.training.divergence import RunDivergedError, raise_if_diverged

PAUSE = 5.0
"""Seconds between two looks at a run that another command is training."""

RETRIES = 5
"""Times that a run is started again because its node or process was lost."""


class RunsFailedError(RuntimeError):
    """Some runs failed; the message says which and why, the others are finished."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A run to train; ``key`` is whatever its owner knows it by."""

    key: Any
    config: RunConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """What happened to a job: an epoch's row, a summary, or a sentence about why it failed."""

    job: Job
    kind: Literal["started", "epoch", "done", "failed", "stopped", "interrupted"]
    """``stopped`` is a job that its owner did not want any more, ``interrupted`` one whose process was asked to end."""
    row: Mapping[str, Any] | None = None
    summary: Mapping[str, Any] | None = None
    error: str = ""


Progress = Callable[[Event], object]
"""Is called with every event; ``False`` after an epoch stops that job, its run can be resumed later."""


class Executor(Protocol):
    """Trains jobs somewhere."""

    speaks: bool
    """Whether its runs show their own progress."""

    def run(self, jobs: Iterable[Job | None], progress: Progress) -> None:
        """Train all jobs, each taken from the iterable when there is room for it.

        None in place of a job says that there is none at the moment; it is asked again after the next event, as long as
        anything is being trained.

        A run that fails is reported and the others continue. A run that another command is training is put off until
        nothing else is left to do.

        Raises:
            KeyboardInterrupt: Somebody stopped it; runs that were being trained have left what can be resumed.
        """


class Agenda:
    """Jobs in their order; those that another command is training come again later."""

    def __init__(self, jobs: Iterable[Job | None]) -> None:
        """Take jobs from an iterable, one by one, as they are asked for."""
        self._jobs = iter(jobs)
        self._put_off: list[Job] = []
        self._look_again = 0.0
        self._lost: list[Job] = []
        self._losses: list[Job] = []

    def next(self) -> Job | None:
        """The next job; None while there is none."""
        if self._lost:
            return self._lost.pop(0)
        job = next(self._jobs, None)
        if job is None and self._put_off and time.monotonic() >= self._look_again:
            return self._put_off.pop(0)
        return job

    def put_off(self, job: Job) -> None:
        """Look at a job again in a while."""
        self._put_off.append(job)
        self._look_again = time.monotonic() + PAUSE

    def lost(self, job: Job) -> bool:
        """Whether a job whose node or process was lost comes again, at once; after so many times it does not."""
        if self._losses.count(job) >= RETRIES:
            return False
        self._losses.append(job)
        self._lost.append(job)
        return True

    @property
    def pause(self) -> float | None:
        """Seconds until a job that comes again may be asked for; None without one."""
        if self._lost:
            return 0.0
        return max(0.0, self._look_again - time.monotonic()) if self._put_off else None


def train_jobs(executor: Executor, jobs: Sequence[Job], progress: Progress) -> dict[Any, Mapping[str, Any]]:
    """The summaries of all jobs by their keys; a failure is raised after the others have finished."""
    done: dict[Any, Mapping[str, Any]] = {}
    failures: list[str] = []

    def record(event: Event) -> object:
        if event.summary is not None:
            done[event.job.key] = event.summary
        elif event.kind == "failed":
            failures.append(f"{event.job.config.folder_name}: {event.error}")
        return progress(event)

    executor.run(jobs, record)
    if failures:
        raise RunsFailedError(f"{len(failures)} of {len(jobs)} runs failed\n" + "\n".join(failures))
    return {job.key: done[job.key] for job in jobs}


def raise_if_failed(failures: Sequence[str], ended: Sequence[Mapping[str, Any]]) -> None:
    """Raise an error about the runs that failed, or else about those that diverged; all others have been trained.

    Args:
        failures: A sentence about each run that failed.
        ended: The summaries of the others.
    """
    said = list(failures)
    try:
        raise_if_diverged(ended, "tables and figures mark them, `lesam train ... --again` trains one anew")
    except RunDivergedError as error:
        if not failures:
            raise
        said.append(str(error))
    if failures:
        number = f"{len(failures)} of {len(failures) + len(ended)} runs"
        raise RunsFailedError(f"{number} failed; the same command trains them again\n" + "\n".join(said))
