"""How long measuring will take, from the pace at which the runs themselves were trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from lesam.lab.console import clock
from lesam.lab.runs.folder import Row, RunFolder

LONG = 600.0
"""Seconds from which a cheaper setting is named."""


def scale_of(runs: Iterable[RunFolder]) -> str:
    """The scale that decides the defaults: the paper's where one of the runs has it."""
    return "paper" if any(run.config().scale == "paper" for run in runs) else "small"


def estimate(runs: Iterable[RunFolder], gradients: Callable[[RunFolder], float], samples: int, cheaper: str) -> str:
    """A sentence about the time that passes over images take for each of the runs.

    Args:
        runs: What is measured.
        gradients: Forward and backward passes over all images that a run needs.
        samples: Images, as far as a run has that many.
        cheaper: Options that cost less, named where it takes long.
    """
    seconds = 0.0
    for run in runs:
        rows = [row for row in run.metrics() if "images_per_second" in row]
        if not rows:
            return "how long this takes is not known: a run has no finished epoch to judge by"
        pace = max(row["images_per_second"] * (row.get("passes") or 1) for row in rows)
        seconds += gradients(run) * min(samples, _images(run, rows)) / pace
    words = f"about {clock(seconds)} at the pace of training, less where answers are kept in the run folders"
    return f"{words}; cheaper: {cheaper}" if seconds >= LONG else words


def _images(run: RunFolder, rows: Sequence[Row]) -> float:
    """Training images of a run, from what an epoch took: data need not be there to read answers that are kept."""
    if run.config().schedule.steps is not None:  # epochs may be other than passes over the data
        return math.inf
    return max(float(round(row["images_per_second"] * row["seconds"])) for row in rows)
