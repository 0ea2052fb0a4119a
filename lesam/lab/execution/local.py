"""A few processes of this machine, each training one run after another.

A process that dies is replaced, and only its run has failed.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from lesam.lab.execution.jobs import Agenda, Event, Job, Progress
from lesam.lab.execution.work import JobStoppedError, answered, attempt, settle
from lesam.lab.training.reporter import Silent

STOP = "stop"
"""Message to a worker: the owner of its job does not want it any more."""


@dataclass(slots=True)
class _Worker:
    process: Any
    pipe: Connection
    place: int
    """Workers at a time have different places, from 0; a place decides about the GPU."""
    job: Job
    """The last one it was given."""


class Pool:
    """Processes that train jobs.

    Every one uses ``threads`` threads, so results do not depend on ``jobs``. Where there are GPUs, each process sees
    one of them; ``gpus`` is the share of it that a run needs.
    """

    speaks = False

    def __init__(self, *, runs: Path | str, jobs: int, threads: int = 1, gpus: float | None = None) -> None:
        """Name where run folders lie and how many processes train at a time."""
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self._runs, self._size, self._threads = str(runs), jobs, threads
        self._gpus = seen_gpus(jobs, gpus)
        self._context = _context()

    def run(self, jobs: Iterable[Job | None], progress: Progress) -> None:
        """Train all jobs, taken from the iterable when a process is free."""
        agenda = Agenda(jobs)
        idle: list[_Worker] = []
        busy: dict[Connection, _Worker] = {}
        try:
            while True:
                while len(busy) < self._size and (job := agenda.next()) is not None:
                    idle = [known for known in idle if known.process.is_alive()]
                    worker = idle.pop() if idle else self._start(job, {known.place for known in busy.values()})
                    worker.job = job
                    worker.pipe.send(job)
                    busy[worker.pipe] = worker
                    progress(Event(job=job, kind="started"))
                pause = agenda.pause
                if not busy and pause is None:
                    return
                if not busy:
                    time.sleep(pause or 0.0)
                full = len(busy) == self._size
                for pipe in [known for known in wait(list(busy), None if full else pause) if known in busy]:
                    worker = busy[pipe]
                    event = _receive(worker, agenda)
                    if event is None or event.kind != "epoch":
                        del busy[pipe]
                        if worker.process.is_alive() and (event is None or event.kind != "interrupted"):
                            idle.append(worker)
                    if event is None:
                        continue
                    if progress(event) is False and event.kind == "epoch":
                        pipe.send(STOP)
                    if event.kind == "interrupted":
                        raise KeyboardInterrupt
        except KeyboardInterrupt:
            for worker in busy.values():
                progress(Event(job=worker.job, kind="interrupted"))
            raise
        finally:
            for worker in [*busy.values(), *idle]:
                worker.pipe.close()  # a worker stops at its next step, with a checkpoint
            for worker in [*busy.values(), *idle]:
                worker.process.join()

    def _start(self, job: Job, taken: set[int]) -> _Worker:
        place = next(number for number in range(self._size) if number not in taken)
        ours, theirs = self._context.Pipe()
        environment = {"CUDA_VISIBLE_DEVICES": self._gpus[place]} if self._gpus else {}
        # Not a daemon, which may not have children: image folders are read by processes of their own.
        process = self._context.Process(  # type: ignore[attr-defined]
            target=_work, args=(theirs, self._runs, self._threads, environment)
        )
        process.start()
        theirs.close()
        return _Worker(process, ours, place, job)


def seen_gpus(jobs: int, gpus: float | None) -> list[str]:
    """The GPU that each of ``jobs`` processes sees, one after another where no share is given.

    >>> seen_gpus(2, 0)
    ['', '']
    """
    if gpus == 0:
        return [""] * jobs
    if gpus is not None and not (0 < gpus <= 1):
        raise ValueError(
            f"--gpus {gpus:g}: a run of a pool has one GPU or a share of it, as in 1 or 0.5; for several GPUs a run, "
            "start `lesam train` by torchrun or srun"
        )
    there = _gpus()
    if gpus is None:
        return [there[place % len(there)] for place in range(jobs)] if there else []
    each = math.floor(1 / gpus + 1e-9)
    if jobs > each * len(there):
        raise ValueError(
            f"{jobs} runs at a time with {gpus:g} of a GPU each need {math.ceil(jobs / each)} GPUs, and there are "
            f"{len(there)}; lower --jobs or --gpus"
        )
    return [there[place // each] for place in range(jobs)]


def _gpus() -> list[str]:
    """The GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


class _Messenger(Silent):
    """Sends each epoch's row to the parent process, and hears whether the run should continue."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def epoch(self, row: Mapping[str, Any], *, epochs: int) -> None:
        """Send the row."""
        with suppress(BrokenPipeError, ConnectionResetError):  # noticed at the next step
            self._pipe.send(("epoch", dict(row)))

    def step(self) -> None:
        """End the run if nobody wants it any more; with a checkpoint, where its owner was lost."""
        if not self._pipe.poll():
            return
        try:
            self._pipe.recv()
        except (EOFError, ConnectionResetError):
            signal.raise_signal(signal.SIGTERM)
        else:
            raise JobStoppedError


def _work(pipe: Connection, runs: str, threads: int, environment: Mapping[str, str]) -> None:
    """What a worker process does: train jobs until the pipe closes."""
    settle(threads, environment)
    while True:
        try:
            job = pipe.recv()
            if job == STOP:  # the run had ended before
                continue
            pipe.send(attempt(job.config, runs, _Messenger(pipe)))
        except (EOFError, KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
            return


def _receive(worker: _Worker, agenda: Agenda) -> Event | None:
    """What a worker has to say about its job; None where it comes again, since another command trains it or it died."""
    try:
        kind, value = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        code = worker.process.exitcode
        if code == -signal.SIGKILL and agenda.lost(
            worker.job
        ):  # somebody, or a system without memory; not its own fault
            return None
        return Event(job=worker.job, kind="failed", error=f"the process died with exit code {code}")
    if kind == "busy":
        agenda.put_off(worker.job)
        return None
    if kind == "epoch":
        return Event(job=worker.job, kind="epoch", row=value)
    return answered(worker.job, (kind, value))


def _context() -> BaseContext:
    """Processes forked from a server that has imported everything once, where the system has such a thing."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lesam.lab.training.loop"])
    return context
