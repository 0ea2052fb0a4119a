"""Where a command trains its runs: options, and the executor that follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from lesam.lab.execution.jobs import Executor


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """Where runs are trained, and what each of them may use there; what is None follows from the place."""

    on: Annotated[str, Parameter(help="local, ray, ray:ADDRESS or slurm.")] = "local"
    jobs: Annotated[int | None, Parameter(help="Runs at a time.")] = None
    cpus: Annotated[int | None, Parameter(name=["--cpus", "--threads"], help="Cores and threads of each run.")] = None
    gpus: Annotated[float | None, Parameter(help="GPUs of each run: 0, 1 or a share of one.")] = None
    partition: Annotated[str | None, Parameter(help="Partition of SLURM.")] = None
    minutes: Annotated[
        int | None, Parameter(help="Time limit of SLURM; longer runs are queued again and resume. By default 240.")
    ] = None


HERE = Where()


def executor(where: Where, runs: Path | str, *, jobs: int, threads: int = 1) -> Executor:
    """The executor of a place.

    Args:
        where: What was asked for.
        runs: Where run folders lie.
        jobs: Processes of this machine where no number is given; 0 for this process itself.
        threads: Of each of them, where no number is given.
    """
    place, colon, address = where.on.partition(":")
    if place != "slurm":
        for name in ("partition", "minutes"):
            if getattr(where, name) is not None:
                raise ValueError(f"--{name} is for --on slurm, and this is --on {where.on}")
    if where.on == "local":
        return _local(where, runs, jobs, threads)
    if place not in ("ray", "slurm") or (colon and (place == "slurm" or not address)):
        raise ValueError(f"--on is local, ray, ray:ADDRESS or slurm, got {where.on!r}")
    from lesam.lab.execution.remote import Needs

    needs = Needs(cpus=1 if where.cpus is None else where.cpus, gpus=where.gpus or 0.0)
    if place == "ray":
        from lesam.lab.execution.on_ray import OnRay

        return OnRay(address=address or None, runs=runs, jobs=where.jobs, needs=needs)
    from lesam.lab.execution.on_slurm import MINUTES, OnSlurm

    minutes = MINUTES if where.minutes is None else where.minutes
    return OnSlurm(runs=runs, jobs=where.jobs, needs=needs, partition=where.partition, minutes=minutes)


def _local(where: Where, runs: Path | str, jobs: int, threads: int) -> Executor:
    from lesam.lab.execution.in_process import InProcess
    from lesam.lab.execution.local import Pool

    if where.jobs is None and not jobs and where.cpus is None and where.gpus is None:
        return InProcess(runs=runs)
    size = (jobs or 1) if where.jobs is None else where.jobs
    return Pool(runs=runs, jobs=size, threads=threads if where.cpus is None else where.cpus, gpus=where.gpus)
