"""What a process that trains one job does, wherever it is."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from lesam.lab.config.run import RunConfig
from lesam.lab.data.batches import LOADER_WORKERS
from lesam.lab.execution.jobs import Event, Job
from lesam.lab.training.reporter import Reporter, Silent

Answer = tuple[Literal["done", "failed", "stopped", "interrupted", "busy", "lost"], Any]
"""How a job ended: its summary, the sentence about its failure or loss, or the signal that interrupted it."""


class JobStoppedError(Exception):
    """The owner of a job does not want it any more."""


def attempt(config: RunConfig, runs: Path | str, progress: Reporter | None = None) -> Answer:
    """Train a run and tell how it ended, in words that can be sent; nothing is raised."""
    from lesam.lab.runs.folder import RunBusyError, RunFolder
    from lesam.lab.training.failures import told
    from lesam.lab.training.interrupt import RunInterruptedError
    from lesam.lab.training.loop import train

    try:
        return "done", train(config, runs=runs, progress=progress or Silent())
    except RunInterruptedError as error:
        return "interrupted", error.signal
    except KeyboardInterrupt:
        return "interrupted", signal.SIGINT
    except JobStoppedError:
        return "stopped", None
    except RunBusyError:
        return "busy", None
    except Exception as error:
        return "failed", told(error, RunFolder.of(config, runs))


def settle(threads: int, environment: Mapping[str, str]) -> None:
    """Make a process one that shares its machine: so many threads, so many readers of image files."""
    import torch

    os.environ.update({LOADER_WORKERS: str(threads), **environment})
    torch.set_num_threads(threads)


def passed_on() -> dict[str, str]:
    """What processes on other machines need of this one's environment: where the data are."""
    return {"LESAM_DATA": os.path.abspath(found)} if (found := os.environ.get("LESAM_DATA")) else {}


def answered(job: Job, answer: Answer) -> Event:
    """The event of an answer that ends a job."""
    kind, value = answer
    if kind == "done":
        return Event(job=job, kind="done", summary=value)
    if kind in ("failed", "lost"):
        return Event(job=job, kind="failed", error=value)
    return Event(job=job, kind="stopped" if kind == "stopped" else "interrupted")
