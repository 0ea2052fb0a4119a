"""A SLURM job that was told of its end is queued again, to resume."""

from __future__ import annotations

import os
import subprocess

from lesam.lab.training.interrupt import BEFORE_THE_LIMIT


def requeue_if_told(signal: int | None) -> str | None:
    """Queue this job again if a signal said that its time is over; a sentence about it, None where it is not so.

    That is what ``#SBATCH --signal=USR1@90`` asks for. Only the first process of a job does it.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if signal not in BEFORE_THE_LIMIT or job is None or os.environ.get("SLURM_PROCID", "0") != "0":
        return None
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    try:
        done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"SLURM job {job} could not be queued again: {error}"
    if done.returncode:
        return f"SLURM job {job} could not be queued again: {done.stderr.strip()}"
    return f"SLURM job {job} is queued again"
