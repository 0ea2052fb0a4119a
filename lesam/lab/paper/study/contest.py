"""The parts of a contest: searched entries in groups, and followers of what was chosen, on stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from lesam.lab.paper.study.entries import Ranges
from lesam.lab.sweeps.tuning import Entry, Setting

Part = Literal["search", "repeat", "track", "time"]
"""Trials on validation data, repetitions on test data, repetitions whose flatness is measured over training, and a
repetition whose time is measured."""

TRACKED_SEEDS = tuple(range(100, 110))
"""Of runs whose flatness is measured: none of the repetitions, which are trained without."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Follower:
    """Repetitions of what was chosen for another entry: with a multiple of its number, or with measurements."""

    name: str
    leader: Entry
    part: Part = "repeat"
    factor: float = 1.0
    changes: Setting = ()

    def setting(self, chosen: Setting) -> Setting:
        """The leader's setting, multiplied.

        >>> from lesam.lab.paper.study.entries import MLP
        >>> sam = MLP.entry("sam")
        >>> Follower(name="SAM, twice the radius", leader=sam, factor=2.0).setting(("optimizer.rho=0.4",))
        ('optimizer.rho=0.8',)
        """
        if self.factor == 1.0:
            return chosen
        pairs = (item.split("=") for item in chosen)
        return tuple(f"{name}={float(value) * self.factor:.4g}" for name, value in pairs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Entries that are searched together, and followers of entries before them."""

    entries: tuple[Entry, ...] = ()
    followers: tuple[Follower, ...] = ()
    repeated: bool = True
    """Whether the choice of a search is repeated on test data; a scan wants the trials alone."""
    repeats: int | None = None
    """Fresh seeds of these entries; None for as many as the stage has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contest:
    """Who competes where. Everything else is the same for all contests: search, repetitions and records."""

    name: str
    stages: tuple[Ranges, ...]
    groups: Callable[[Ranges, str], list[Group]]
    """Of a stage at a scale; the base is the first entry of the first group."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Where nobody asks for others, of which each stage takes as many as it has repetitions."""
        return tuple(range(max(number for stage in self.stages for number in self.repeats(stage, "small").values())))

    def repeats(self, stage: Ranges, scale: str) -> dict[str, int]:
        """How many fresh seeds each entry has, by name."""
        return {
            entry.name: group.repeats or stage.repeats
            for group in self.groups(stage, scale)
            for entry in group.entries
            if group.repeated
        }

    def names(self, stage: Ranges, scale: str) -> list[str]:
        """The names of all that is repeated on test data, in order."""
        found = []
        for group in self.groups(stage, scale):
            if group.repeated:
                found += [entry.name for entry in group.entries]
            found += [follower.name for follower in group.followers if follower.part == "repeat"]
        return found
