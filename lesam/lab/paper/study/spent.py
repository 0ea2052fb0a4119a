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
    """A row a stage and one for all; a run's hours are those of its own clock, evaluations included."""
    rows = []
    for stage in contest.stages:
        seconds = [one.seconds for one in records if one.recipe == stage.recipe and one.part != "time"]
        rows.append((stage.recipe, planned(contest, stage, scale), len(seconds), math.fsum(seconds) / HOUR))
    rows.append(("all", sum(row[1] for row in rows), sum(row[2] for row in rows), math.fsum(row[3] for row in rows)))
    head = ("stage", "runs planned", "runs recorded", "hours")
    return [head, *((name, f"{plan:,}", f"{done:,}", f"{hours:.1f}") for name, plan, done, hours in rows)]


def planned(contest: Contest, stage: Ranges, scale: str = "small") -> int:
    """Runs of a stage when every trial, every repetition and every follower has run."""
    found = sum(contest.repeats(stage, scale).values())
    for group in contest.groups(stage, scale):
        found += sum(len(entry.settings) * len(SEARCH_SEEDS) for entry in group.entries)
        found += sum(len(TRACKED_SEEDS) if one.part == "track" else stage.repeats for one in group.followers)
    return found
