"""Many runs at once: a few processes, each training one run after another.

A run that raises is reported and the others continue; a process that dies is replaced, and only its run has failed. A
run that another command is training is put off: it is asked for again when nothing else is left to do.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Literal

from lesam.lab.config.run import RunConfig
from lesam.lab.training.divergence import RunDivergedError, raise_if_diverged
from lesam.lab.training.reporter import Silent

PAUSE = 5.0
"""Seconds between two looks at a run that another command is training."""


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
    kind: Literal["epoch", "done", "failed", "interrupted", "busy"]
    row: Mapping[str, Any] | None = None
    summary: Mapping[str, Any] | None = None
    error: str = ""


class Pool:
    """Processes that train jobs. Every one uses ``threads`` threads, so results do not depend on ``jobs``."""

    def __init__(self, *, runs: Path | str, jobs: int, threads: int = 1) -> None:
        """Name where run folders lie and how many processes train at a time."""
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self._runs, self._size, self._threads = str(runs), jobs, threads
        self._context = _context()

    def run(self, jobs: Iterator[Job] | list[Job], progress: Callable[[Event], None]) -> None:
        """Train all jobs, taken from the iterator when a process is free; ``progress`` is called with every event."""
        waiting = iter(jobs)
        put_off: list[Job] = []
        look_again = 0.0
        busy: dict[Connection, tuple[Any, Job]] = {}
        idle: list[tuple[Any, Connection]] = []
        try:
            while True:
                while len(busy) < self._size:
                    job = next(waiting, None)
                    if job is None and put_off and time.monotonic() >= look_again:
                        job = put_off.pop(0)
                    if job is None:
                        break
                    process, pipe = idle.pop() if idle else self._start()
                    pipe.send(job)
                    busy[pipe] = (process, job)
                if not busy and not put_off:
                    return
                if not busy:
                    time.sleep(max(0.0, look_again - time.monotonic()))
                pause = max(0.0, look_again - time.monotonic()) if put_off and len(busy) < self._size else None
                for pipe in [known for known in wait(list(busy), pause) if isinstance(known, Connection)]:
                    process, job = busy[pipe]
                    event = _receive(pipe, process, job)
                    if event.kind != "epoch":
                        del busy[pipe]
                        if process.is_alive() and event.kind != "interrupted":
                            idle.append((process, pipe))
                    if event.kind == "busy":
                        put_off.append(event.job)
                        look_again = time.monotonic() + PAUSE
                        continue
                    progress(event)
                    if event.kind == "interrupted":
                        raise KeyboardInterrupt
        finally:
            for pipe in [*busy, *(pipe for _, pipe in idle)]:
                pipe.close()  # a worker stops at its next message and leaves what can be resumed
            for process in [*(process for process, _ in busy.values()), *(process for process, _ in idle)]:
                process.join()

    def _start(self) -> tuple[Any, Connection]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(  # type: ignore[attr-defined]
            target=_work, args=(theirs, self._runs, self._threads), daemon=True
        )
        process.start()
        theirs.close()
        return process, ours


def train_jobs(
    waiting: list[Job], *, runs: Path | str, jobs: int, threads: int = 1, progress: Callable[[Event], None]
) -> dict[Any, Mapping[str, Any]]:
    """The summaries of all jobs by their keys; a failure is raised after the others have finished."""
    done: dict[Any, Mapping[str, Any]] = {}
    failures: list[str] = []

    def record(event: Event) -> None:
        if event.kind == "done" and event.summary is not None:
            done[event.job.key] = event.summary
        elif event.kind == "failed":
            failures.append(f"{event.job.config.folder_name}: {event.error}")
        progress(event)

    Pool(runs=runs, jobs=jobs, threads=threads).run(waiting, record)
    if failures:
        raise RunsFailedError(f"{len(failures)} of {len(waiting)} runs failed\n" + "\n".join(failures))
    return {job.key: done[job.key] for job in waiting}


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


class _Messenger(Silent):
    """Sends each epoch's row to the parent process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def epoch(self, row: Mapping[str, Any], *, epochs: int) -> None:
        """Send the row; raises when nobody listens any more, which ends the run."""
        self._pipe.send(("epoch", dict(row)))


def _work(pipe: Connection, runs: str, threads: int) -> None:
    """What a worker process does: train jobs until the pipe closes."""
    import torch

    from lesam.lab.runs.folder import RunBusyError, RunFolder
    from lesam.lab.training.failures import told
    from lesam.lab.training.interrupt import RunInterruptedError
    from lesam.lab.training.loop import train

    torch.set_num_threads(threads)
    while True:
        try:
            job: Job = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            answer: tuple[str, Any] = ("done", train(job.config, runs=runs, progress=_Messenger(pipe)))
        except (BrokenPipeError, ConnectionResetError):
            return
        except (RunInterruptedError, KeyboardInterrupt):
            answer = ("interrupted", None)
        except RunBusyError:
            answer = ("busy", None)
        except Exception as error:
            answer = ("failed", told(error, RunFolder.of(job.config, runs)))
        try:
            pipe.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            return


def _receive(pipe: Connection, process: Any, job: Job) -> Event:
    try:
        kind, value = pipe.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        return Event(job=job, kind="failed", error=f"the process died with exit code {process.exitcode}")
    if kind == "epoch":
        return Event(job=job, kind="epoch", row=value)
    if kind == "done":
        return Event(job=job, kind="done", summary=value)
    if kind in ("interrupted", "busy"):
        return Event(job=job, kind=kind)
    return Event(job=job, kind="failed", error=value)


def _context() -> BaseContext:
    """Processes forked from a server that has imported everything once, where the system has such a thing."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lesam.lab.training.loop"])
    return context
