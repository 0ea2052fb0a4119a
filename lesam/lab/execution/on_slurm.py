"""Runs as tasks of SLURM arrays, sent by submitit.

Before the time limit, and when a task is preempted, the run writes a checkpoint and the task is queued again. What
SLURM knows of tasks is asked by ``squeue`` and ``scontrol``, which every cluster has, not by ``sacct``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lesam.lab.execution.remote import Needs, Remote, Task
from lesam.lab.execution.work import Answer
from lesam.lab.training.interrupt import BEFORE_THE_LIMIT

ASK = 10.0
"""Seconds between two questions to SLURM."""

GRACE = 15.0
"""Seconds that the answer of a task that left the queue may take to be seen on a shared file system."""

CANCELLING = 60.0
"""Seconds that cancelled tasks get to write their checkpoints."""

MINUTES = 240
"""Time limit of a task, where none is given; a run that needs longer is queued again and resumes."""

SECONDS_BEFORE_THE_LIMIT = 90

LOST = ("BOOT_FAIL", "DEADLINE", "NODE_FAIL", "PREEMPTED", "REVOKED", "TIMEOUT")
"""States of tasks that ended by no fault of their run."""


@dataclass(frozen=True, slots=True)
class _Resumable:
    """A task that submitit can queue again."""

    task: Task

    def __call__(self) -> Answer:
        kind, value = self.task()
        if kind == "interrupted":
            if value in BEFORE_THE_LIMIT:
                # The checkpoint is written: now submitit, which has its handler back, queues the task again and exits.
                name = os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")
                signal.raise_signal(getattr(signal, f"SIG{name}"))
            sys.exit(128 + signal.SIGTERM)  # without an answer: SLURM knows whether the task comes back
        return kind, value

    def checkpoint(self) -> Any:
        """What is queued again: the same, which resumes."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


class OnSlurm(Remote):
    """The cluster of this machine."""

    def __init__(
        self, *, runs: Path | str, jobs: int | None, needs: Needs, partition: str | None = None, minutes: int = MINUTES
    ) -> None:
        """See that there is SLURM, and that it has what is asked for."""
        super().__init__(runs=runs, jobs=jobs, needs=needs)
        if minutes * 60 <= SECONDS_BEFORE_THE_LIMIT:
            raise ValueError(
                f"--minutes {minutes} leaves no time to train: runs are told {SECONDS_BEFORE_THE_LIMIT} seconds before "
                "the limit to write a checkpoint"
            )
        if needs.gpus not in (0, 1):
            raise ValueError(f"--gpus {needs.gpus:g}: SLURM gives whole GPUs; with --on slurm it is 0 or 1")
        if shutil.which("sbatch") is None:
            raise ValueError("--on slurm: there is no sbatch here; start this on a login node of the cluster")
        _check_nodes(needs, partition)
        import submitit

        logs = self.runs / ".slurm" / "%j"
        self._sbatch = submitit.AutoExecutor(folder=logs, cluster="slurm", slurm_max_num_timeout=1000)
        self._sbatch.update_parameters(
            name="lesam",
            timeout_min=minutes,
            cpus_per_task=needs.cpus,
            slurm_signal_delay_s=SECONDS_BEFORE_THE_LIMIT,
            slurm_array_parallelism=self.limit,
            slurm_additional_parameters={"requeue": True},
            **({"gpus_per_node": int(needs.gpus)} if needs.gpus else {}),
            **({"slurm_partition": partition} if partition else {}),
        )
        self._asked_at, self._left_at = float("-inf"), dict[str, float]()

    def prepare(self, mark: str) -> None:
        """Nothing more: nodes are not asked before they have a task, which then says what it lacks."""

    def send(self, tasks: Sequence[Task]) -> list[Hashable]:
        """Submit an array, one task a run."""
        try:
            with self._sbatch.batch():
                sent = [self._sbatch.submit(_Resumable(task)) for task in tasks]
        except Exception as error:  # submitit has several, with the words of sbatch in them
            raise ValueError(f"SLURM did not take the runs: {_last_line(error)}") from None
        return list(sent)

    def answers(self, tickets: Sequence[Any], seconds: float) -> dict[Any, Answer]:
        """Results that tasks have written, and a word about tasks that ended without one."""
        time.sleep(seconds)
        found = {ticket: _answer(ticket) for ticket in tickets if ticket.paths.result_pickle.exists()}
        if time.monotonic() - self._asked_at < ASK:
            return found
        self._asked_at = time.monotonic()
        queued = _queued(tickets)
        for ticket in tickets:
            if ticket in found or queued is None or ticket.job_id in queued:
                self._left_at.pop(ticket.job_id, None)
            elif time.monotonic() - self._left_at.setdefault(ticket.job_id, self._asked_at) >= GRACE:
                found[ticket] = _ended(ticket)
        return found

    def cancel(self, tickets: Sequence[Any]) -> None:
        """Have SLURM end tasks, and wait until they have."""
        ids = sorted({ticket.job_id for ticket in tickets})
        # The task itself, not only its shell, hears of it, and writes a checkpoint before it is killed.
        subprocess.run(["scancel", "--full", *ids], check=False, capture_output=True)
        until = time.monotonic() + CANCELLING
        while time.monotonic() < until and (queued := _queued(tickets)) is not None and queued & set(ids):
            time.sleep(1)


def _check_nodes(needs: Needs, partition: str | None) -> None:
    """Refuse what no node of a partition has: SLURM itself may queue it for ever."""
    nodes = [line.split() for line in _asked(["sinfo", "--noheader", "--format=%R %c %G"]).splitlines()]
    names = sorted({name for name, _, _ in nodes})
    if partition is not None and partition not in names:
        raise ValueError(f"--partition {partition}: the cluster has {', '.join(names)}")
    here = [(cores, others) for name, cores, others in nodes if partition in (None, name)]
    most = max((int(cores.rstrip("+")) for cores, _ in here), default=0)
    if needs.cpus > most and not any(cores.endswith("+") for cores, _ in here):
        raise ValueError(f"a run asks for {needs.cpus} cores, and no node has more than {most}; lower --cpus")
    if needs.gpus and not any("gpu" in others for _, others in here):
        raise ValueError(f"a run asks for a GPU, and no node of {partition or 'the cluster'} has one; leave --gpus out")


def _answer(ticket: Any) -> Answer:
    try:
        answer: Answer = ticket.result()
    except Exception as error:  # what submitit makes of an error outside of a run
        return "failed", f"{_last_line(error)}; {ticket.paths.stderr} has more"
    return answer


def _ended(ticket: Any) -> Answer:
    """What SLURM says of a task that has left the queue without an answer."""
    words = _asked(["scontrol", "--oneliner", "show", "job", ticket.job_id], optional=True).split()
    state = next((word.partition("=")[2] for word in words if word.startswith("JobState=")), "unknown")
    said = f"SLURM ended task {ticket.job_id} (state {state}); {ticket.paths.stderr} has its output"
    return ("lost" if state in LOST else "failed"), said


def _queued(tickets: Sequence[Any]) -> set[str] | None:
    """Those of the tasks that wait or run; None where SLURM does not answer."""
    arrays = sorted({ticket.job_id.partition("_")[0] for ticket in tickets})
    command = ["squeue", "--noheader", "--array", "--format=%i", f"--jobs={','.join(arrays)}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        return set() if "Invalid job id" in done.stderr else None
    return set(done.stdout.split())


def _asked(command: list[str], *, optional: bool = False) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode and not optional:
        raise ValueError(f"--on slurm: {command[0]} fails: {done.stderr.strip().partition(chr(10))[0]}")
    return done.stdout


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
