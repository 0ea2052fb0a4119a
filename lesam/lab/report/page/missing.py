"""What the run folders do not hold, and the command that would put it there."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lesam.lab.report.page.entries import Entry
from lesam.lab.report.page.kept import LANDSCAPE, Kept

MOST_NAMES = 8


def missing(entries: Sequence[Entry], kept: Kept, sources: Sequence[Path]) -> list[dict[str, Any]]:
    """Each kind of measurement that a group with a finished run lacks: what, of whom, and the command."""
    paths = shlex.join(map(str, sources))
    wanted: list[tuple[str, str, Callable[[Entry], bool]]] = [
        (
            "Hessian eigenvalues, trace and low-pass filter of the last weights",
            f"lesam flatness {paths}",
            lambda entry: all(kept.final(measure, entry) for measure in ("eigenvalues", "trace", "lpf")),
        ),
        (
            "the density of the whole Hessian spectrum",
            f"lesam flatness {paths} --density",
            lambda entry: bool(kept.final("density", entry)),
        ),
        (
            "curvature layer by layer",
            f"lesam flatness {paths} --by-layer",
            lambda entry: bool(kept.final("layers", entry)),
        ),
        ("the loss landscape", f"lesam landscape {paths}", lambda entry: bool(kept.of(LANDSCAPE, entry))),
        ("accuracy on attacked images", f"lesam attack {paths}", lambda entry: bool(kept.attacks.get(entry.name))),
        (
            "accuracy on corrupted images",
            f"lesam corrupt {paths}",
            lambda entry: bool(kept.corruptions.get(entry.name)),
        ),
        (
            "flatness over epochs",
            "lesam train RECIPE --track lpf,trace,eigenvalue",
            lambda entry: (
                any(member.series("lpf") for member in entry.members)
                or len({answer.epoch for answer in kept.of("lpf", entry)}) > 1
            ),
        ),
        (
            "a second seed, without which there is neither a spread nor a comparison",
            "lesam train RECIPE --method METHOD --seeds 0 1 2",
            lambda entry: len(entry.members) > 1,
        ),
    ]
    found = []
    ended = [entry for entry in entries if entry.ended]
    for what, command, there in wanted:
        lacking = [entry.name for entry in ended if not there(entry)]
        if lacking:
            who = "every method" if len(lacking) == len(ended) else _listed(lacking)
            found.append({"what": what, "who": who, "command": command})
    return found


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
