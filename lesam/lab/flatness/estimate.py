"""How long measuring will take, from the pace at which the runs themselves were trained."""

from __future__ import annotations

from collections.abc import Iterable

from lesam.lab.console import clock
from lesam.lab.runs.folder import RunFolder

LONG = 600.0
"""Seconds from which a cheaper setting is named."""


def scale_of(runs: Iterable[RunFolder]) -> str:
    """The scale that decides the defaults: the paper's where one of the runs has it."""
    return "paper" if any(run.config().scale == "paper" for run in runs) else "small"


def estimate(runs: Iterable[RunFolder], gradients: float, samples: int, cheaper: str) -> str:
    """A sentence about the time that ``gradients`` passes over ``samples`` images take for each of the runs.

    Args:
        runs: What is measured.
        gradients: Forward and backward passes over all images, for one run.
        samples: Images.
        cheaper: Options that cost less, named where it takes long.
    """
    seconds = 0.0
    for run in runs:
        paces = [
            row["images_per_second"] * (row.get("passes") or 1) for row in run.metrics() if "images_per_second" in row
        ]
        if not paces:
            return "how long this takes is not known: a run has no finished epoch to judge by"
        seconds += gradients * samples / max(paces)
    words = f"about {clock(seconds)} at the pace of training, less where answers are kept in the run folders"
    return f"{words}; cheaper: {cheaper}" if seconds >= LONG else words
