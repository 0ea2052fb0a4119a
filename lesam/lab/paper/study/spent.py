"""What a contest has taken so far, stage by stage: runs that are recorded of those planned, and their hours."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lesam.lab.paper.study.contest import TRACKED_SEEDS, Contest
from lesam.lab.paper.study.entries import Ranges
from lesam.lab.paper.study.records import Record
from lesam.lab.sweeps.tuning import SEARCH_SEEDS

HOUR = 3600


def spent(contest: Contest, records: Sequence[Record], scale: str = "small") -> list[tuple[str, ...]]:
    """A row a stage and one for all; a run's hours are those of its own clock, evaluations included.

    A run that answers for several entries stands in the plan for each of them, and was trained once.
    """
    rows = []
    for stage in contest.stages:
        of = [one for one in records if one.recipe == stage.recipe and one.part != "time"]
        seconds = {one.fingerprint: one.seconds for one in of}
        counts = (planned(contest, stage, scale), len(of), len(seconds))
        rows.append((stage.recipe, counts, math.fsum(seconds.values())))
    total = [sum(column) for column in zip(*(counts for _, counts, _ in rows), strict=True)]
    rows.append(("all", (total[0], total[1], total[2]), math.fsum(seconds for _, _, seconds in rows)))
    head = ("stage", "planned", "recorded", "different runs", "hours")
    return [
        head,
        *((name, *(f"{count:,}" for count in counts), f"{seconds / HOUR:.1f}") for name, counts, seconds in rows),
    ]


def planned(contest: Contest, stage: Ranges, scale: str = "small") -> int:
    """Runs of a stage when every trial, every repetition and every follower has run."""
    found = sum(contest.repeats(stage, scale).values())
    for group in contest.groups(stage, scale):
        found += sum(len(entry.settings) * len(SEARCH_SEEDS) for entry in group.entries)
        found += sum(len(TRACKED_SEEDS) if one.part == "track" else stage.repeats for one in group.followers)
    return found
