"""What the page knows of each group of runs: its members, how each of them ended, and the axes of their curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from lesam.lab.report.style import Look, looks_of
from lesam.lab.runs.folder import Row, RunFolder, is_share, readable
from lesam.lab.runs.repetitions import Group, group, has_diverged, repetition
from lesam.lab.runs.snapshot import Snapshot
from lesam.lab.runs.statistics import Spread

Status = Literal["finished", "diverged", "unfinished"]

AXES: dict[str, str] = {"epoch": "epoch", "passes": "forward-backward passes", "seconds": "seconds of training"}
"""What curves can be drawn over."""

MOST_EPOCHS = 2**53
"""Whole numbers up to this one are exact in a browser."""


def number(value: object) -> float | None:
    """A finite number of a file, None for anything else.

    >>> number(1), number(None), number("1"), number(float("nan")), number(True), number(10**400)
    (1.0, None, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number of more than 308 digits
        return None


class Member:
    """One run of a group."""

    def __init__(self, run: RunFolder) -> None:
        """Take what the folder says."""
        self.run, self.config, self.summary = run, run.config(), run.summary()
        self.seed, self.rows = self.config.seed, run.metrics()
        self.status: Status = "unfinished" if self.summary is None else "finished"
        if has_diverged(self.summary):
            self.status = "diverged"

    @cached_property
    def epochs(self) -> int:
        """Finished epochs."""
        return int(self.rows[-1]["epoch"]) + 1 if self.rows else 0

    @cached_property
    def last(self) -> Row:
        """The last row of the metrics: of a finished run the one in its summary, empty where there is none."""
        if self.summary is not None:
            return dict(self.summary["last"])
        return self.rows[-1] if self.rows else {}

    @cached_property
    def axes(self) -> dict[str, list[float]]:
        """For each row: epochs, forward-backward passes and seconds of training up to its end."""
        steps, passes, seconds = 0.0, 0.0, 0.0
        found: dict[str, list[float]] = {name: [] for name in AXES}
        for row in self.rows:
            until = number(row.get("step")) or steps
            passes += (until - steps) * (number(row.get("passes")) or 1.0)
            steps, seconds = until, seconds + (number(row.get("seconds")) or 0.0)
            for name, value in (("epoch", float(row["epoch"] + 1)), ("passes", passes), ("seconds", seconds)):
                found[name].append(value)
        return found

    def series(self, metric: str) -> dict[int, float]:
        """A column of the metrics by the index of its row, where it has a number."""
        found = ((index, number(row.get(metric))) for index, row in enumerate(self.rows))
        return {index: value for index, value in found if value is not None}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One group: repetitions of one setting."""

    group: Group
    place: str
    """Recipe and scale."""
    look: Look
    members: tuple[Member, ...]

    @property
    def name(self) -> str:
        """What the group is called in every table and figure of the page."""
        return self.look.name

    @property
    def label(self) -> str:
        """The same without recipe and scale, for sentences that name those."""
        return self.group.label + self.group.mark

    def of_status(self, *wanted: Status) -> list[Member]:
        """The members that ended in one of these ways."""
        return [member for member in self.members if member.status in wanted]

    @cached_property
    def ended(self) -> list[Member]:
        """Runs that reached their end, those that diverged among them: as tables count them."""
        return self.of_status("finished", "diverged")

    @cached_property
    def accuracy_by_seed(self) -> dict[tuple[int, str], float]:
        """Test accuracy of the last epoch of the runs that ended, by their seed and that of their data."""
        found = {repetition(member.config): number(member.last.get("test_accuracy")) for member in self.ended}
        return {seed: value for seed, value in found.items() if value is not None}

    @cached_property
    def accuracy(self) -> Spread | None:
        """The same over seeds."""
        return spread(self.accuracy_by_seed.values())

    def status(self) -> str:
        """How many runs ended in which way.

        Unfinished and diverged ones are always named.
        """
        counts = {word: len(self.of_status(word)) for word in get_args(Status)}
        return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def spread(values: Iterable[float | None]) -> Spread | None:
    """The summary of those that are numbers, None where there are none."""
    known = [value for value in values if value is not None]
    return Spread.of(known) if known else None


def read(runs: Iterable[RunFolder]) -> tuple[list[Entry], list[str]]:
    """The groups among the runs that can be read, and a sentence about every folder that is not counted."""
    good, complaints = readable(run if isinstance(run, Snapshot) else Snapshot(run) for run in runs)
    whole: list[RunFolder] = []
    for run in good:
        damage = next((words for row in run.metrics() if (words := _damage(row))), "")
        if damage:
            complaints.append(f"{run.path / 'metrics.jsonl'} has a row whose {damage}")
        else:
            whole.append(run)
    groups = group(whole)
    looks = looks_of(groups)
    entries = [
        Entry(group=each, place=place, look=looks[each.title], members=tuple(map(Member, each.runs)))
        for place, members in _by_place(groups).items()
        for each in members
    ]
    copies = [str(run.path) for each in groups for run in each.duplicates]
    if copies:
        complaints.append(f"counted once, the same run (setting and seed) as another folder: {', '.join(copies)}")
    return entries, complaints


def _damage(row: Row) -> str:
    """What no epoch of a run can be; empty where there is nothing of this kind."""
    if not 0 <= row["epoch"] <= MOST_EPOCHS:
        return "epoch is no whole number that a run can reach"
    odd = [name for name, value in row.items() if name.endswith("_accuracy") and number(value) and not is_share(value)]
    return f"{odd[0]} is not between 0 and 1" if odd else ""


def _by_place(groups: Sequence[Group]) -> dict[str, list[Group]]:
    places: dict[str, list[Group]] = {}
    for each in groups:
        places.setdefault(f"{each.config.recipe} {each.config.scale}", []).append(each)
    return places


def plain(value: Any) -> Any:
    """A value for JSON: numbers with seven digits, what is not finite as null.

    >>> plain({"a": [0.123456789, float("nan")]})
    {'a': [0.1234568, None]}
    """
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
