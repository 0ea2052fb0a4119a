"""Runs on machines that share a file system with this one: sent, looked at now and then, read from their folders."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lesam.lab.config.run import RunConfig
from lesam.lab.execution.jobs import RETRIES, Agenda, Event, Job, Progress
from lesam.lab.execution.work import Answer, answered, attempt, passed_on, settle
from lesam.lab.runs.folder import RunFolder

LOOK = 1.0
"""Seconds between two looks at what was sent."""

MOST_AT_A_TIME = 1000
"""Jobs that are sent and not ended, where nobody gives a number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What one run asks for."""

    cpus: int = 1
    gpus: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no machine has."""
        if self.cpus < 1:
            raise ValueError(f"--cpus must be at least 1, got {self.cpus}")
        if not 0 <= self.gpus <= 1:
            raise ValueError(
                f"--gpus {self.gpus:g}: a run has one GPU or a share of it, as in 1 or 0.5; for several GPUs a run, "
                "start `lesam train` by torchrun or srun"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A run as it is sent: everything that a process elsewhere needs to train it, or to say why it cannot."""

    config: RunConfig
    runs: str
    mark: str
    """A file that the sender has put into the folder of run folders."""
    needs: Needs
    environment: dict[str, str] = field(default_factory=passed_on)

    def __call__(self) -> Answer:
        """Train the run."""
        settle(self.needs.cpus, self.environment)
        if complaint := missing(self.runs, self.mark):
            return "failed", complaint
        return attempt(self.config, self.runs)


def missing(runs: str, mark: str) -> str | None:
    """What this machine lacks to train runs of another one, in a sentence; None if it lacks nothing."""
    import platform

    if not (Path(runs) / mark).exists():
        return (
            f"{platform.node()} does not see {runs} of the machine that sent the runs; --runs must be a folder on a "
            "file system that all machines share"
        )
    return None


class Remote(ABC):
    """Sends jobs, and tells what becomes of them; subclasses know a cluster."""

    speaks = False

    def __init__(self, *, runs: Path | str, jobs: int | None, needs: Needs) -> None:
        """Name where run folders lie, on every machine, and how many jobs are sent at a time."""
        if jobs is not None and jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        self.runs, self.limit, self.needs = Path(runs).resolve(), jobs or MOST_AT_A_TIME, needs

    @abstractmethod
    def send(self, tasks: Sequence[Task]) -> list[Hashable]:
        """Queue tasks; a ticket for each."""

    @abstractmethod
    def answers(self, tickets: Sequence[Any], seconds: float) -> dict[Any, Answer]:
        """What has ended, after at most that long; a run that its machine lost is not an answer while it is retried."""

    @abstractmethod
    def cancel(self, tickets: Sequence[Any]) -> None:
        """Stop tasks, and wait until they have written what can be resumed, as far as they can."""

    @abstractmethod
    def prepare(self, mark: str) -> None:
        """Refuse, before anything is queued, what can be seen to fail; ``mark`` is a file in the folder of runs."""

    def run(self, jobs: Iterable[Job | None], progress: Progress) -> None:
        """Send jobs as there is room, and look at them until all have ended."""
        with self._marked() as mark:
            self.prepare(mark)
            under_way = _UnderWay(self, Agenda(jobs), progress, mark)
            try:
                while under_way.fill():
                    under_way.look()
            except BaseException as error:
                under_way.abandon(error)
                raise

    @contextmanager
    def _marked(self) -> Iterator[str]:
        """A file in the folder of runs by which other machines see that it is the same folder."""
        self.runs.mkdir(parents=True, exist_ok=True)
        mark = self.runs / f".sent-{uuid.uuid4().hex[:12]}"
        mark.touch()
        try:
            yield mark.name
        finally:
            mark.unlink(missing_ok=True)


@dataclass(slots=True)
class _Sent:
    job: Job
    folder: RunFolder
    epoch: int = -1
    """The last one that was told."""
    stamp: int = 0
    """When its metrics had been written, as they were read last."""
    started: bool = False


class _UnderWay:
    """The jobs of one call that were sent and have not ended."""

    def __init__(self, remote: Remote, agenda: Agenda, progress: Progress, mark: str) -> None:
        self.remote, self.agenda, self.progress, self.mark = remote, agenda, progress, mark
        self.sent: dict[Any, _Sent] = {}

    def fill(self) -> bool:
        """Send what there is room for; whether there is anything left to wait for."""
        coming: list[Job] = []
        while len(self.sent) + len(coming) < self.remote.limit and (job := self.agenda.next()) is not None:
            folder = RunFolder.of(job.config, self.remote.runs)
            if (summary := folder.summary()) is not None:
                self.progress(Event(job=job, kind="done", summary=summary))
            elif folder.busy():  # a task would take a place in the cluster only to say so
                self.agenda.put_off(job)
            else:
                coming.append(job)
        if coming:
            runs, needs = str(self.remote.runs), self.remote.needs
            tasks = [Task(config=job.config, runs=runs, mark=self.mark, needs=needs) for job in coming]
            for ticket, job in zip(self.remote.send(tasks), coming, strict=True):
                self.sent[ticket] = _Sent(job, RunFolder.of(job.config, self.remote.runs))
        return bool(self.sent) or self.agenda.pause is not None

    def look(self) -> None:
        """Tell what has happened since the last look, after a moment."""
        if not self.sent:
            time.sleep(self.agenda.pause or 0.0)
            return
        found = self.remote.answers(list(self.sent), LOOK)
        for ticket, one in list(self.sent.items()):
            wanted = _tell_epochs(one, self.progress)
            if ticket in found:
                del self.sent[ticket]
                self._end(one.job, found[ticket])
            elif not wanted:
                self.remote.cancel([ticket])
                del self.sent[ticket]
                self.progress(Event(job=one.job, kind="stopped"))

    def _end(self, job: Job, answer: Answer) -> None:
        kind, value = answer
        if kind == "interrupted":  # not by us: what we cancel is not looked at any more
            words = f"its process was told to end {RETRIES + 1} times, at last by signal {value}"
            kind, answer = "lost", ("lost", words)
        if kind == "busy":
            self.agenda.put_off(job)
        elif kind != "lost" or not self.agenda.lost(job):
            self.progress(answered(job, answer))

    def abandon(self, error: BaseException) -> None:
        """Stop all tasks, because this process cannot wait for them."""
        if isinstance(error, KeyboardInterrupt):
            for one in self.sent.values():
                self.progress(Event(job=one.job, kind="interrupted"))
        if self.sent:
            self.remote.cancel(list(self.sent))


def _tell_epochs(one: _Sent, progress: Progress) -> bool:
    """Tell the epochs that have been written since the last look; whether the run is still wanted."""
    if not one.started and one.folder.busy():
        one.started = True
        progress(Event(job=one.job, kind="started"))
    try:
        stamp = (one.folder.path / "metrics.jsonl").stat().st_mtime_ns
        rows = one.folder.metrics() if stamp != one.stamp else []
    except (OSError, ValueError):  # a file that is being written; whoever reads the run will see what it is
        return True
    one.stamp = stamp
    new = [row for row in rows if row["epoch"] > one.epoch]  # a run that resumes repeats some of them
    one.epoch = max((row["epoch"] for row in new), default=one.epoch)
    told = [progress(Event(job=one.job, kind="epoch", row=row)) is not False for row in new]
    return all(told)
