"""Methods against each other: paired differences on equal seeds, and who is best for its cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from lesam.lab.report.page.entries import Entry, Member, spread
from lesam.lab.report.page.quantities import total_passes, total_seconds
from lesam.lab.report.tables import circumstances
from lesam.lab.runs.statistics import LEVEL, PairedDifference, Spread

ALL_PAIRS = 12
"""Up to this number of groups every pair is compared; beyond, each with the best one."""

FEWEST_SEEDS = 3
"""Common seeds below which there is no verdict: two tell hardly anything of a spread."""
ROUNDING = 1e-12
"""Deviation of accuracies that is none."""
Verdict = Literal["shown", "not shown", "fewer than three common seeds", "equal differences: no test"]

COSTS: Mapping[str, Callable[[Member], float | None]] = {"passes": total_passes, "seconds": total_seconds}


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two groups that may be compared, first the one with the higher mean over the seeds that both have.

    Groups of fewer than two common seeds have no such means and are in the order of their own.
    """

    better: Entry
    other: Entry
    difference: PairedDifference | None
    """Of test accuracy over the seeds that both have; None with fewer than two of them."""
    comparisons: int
    """Pairs among the groups of the same circumstances, which p-values are corrected for."""

    @property
    def p(self) -> float | None:
        """Corrected by Bonferroni's rule for all pairs: choosing the best of many is part of the game.

        None where the differences have no spread (but for rounding): the t-test would call any of them certain.
        """
        found = self.difference
        if found is None or (found.spread.mean != 0 and found.spread.std <= ROUNDING):
            return None
        return min(1.0, found.p * self.comparisons)

    @property
    def shown(self) -> bool:
        """Whether the difference can be told from chance."""
        return self.verdict == "shown"

    def rival(self, entry: Entry) -> Entry:
        """The other one of the two."""
        return self.other if entry is self.better else self.better

    @property
    def unpaired(self) -> dict[str, list[str]]:
        """Seeds that only one of the two has, by the name of the group; with that of the data where it matters."""
        ours, theirs = self.better.accuracy_by_seed, self.other.accuracy_by_seed
        often = Counter(seed for seed, _ in {*ours, *theirs})
        found = {self.better.name: sorted(ours.keys() - theirs), self.other.name: sorted(theirs.keys() - ours)}
        return {
            name: [f"{seed} (data seed {data or 'not set'})" if often[seed] > 1 else str(seed) for seed, data in alone]
            for name, alone in found.items()
            if alone
        }

    @property
    def verdict(self) -> Verdict:
        """Whether the difference can be told from chance, or why that cannot be asked."""
        if self.difference is None or self.difference.spread.n < FEWEST_SEEDS:
            return "fewer than three common seeds"
        if self.p is None:
            return "equal differences: no test"
        return "shown" if self.p < LEVEL else "not shown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Contest:
    """Groups on the same data, with the same network, for as long: best mean test accuracy first."""

    place: str
    entries: tuple[Entry, ...]
    pairs: tuple[Pair, ...]


def contests(entries: Sequence[Entry]) -> list[Contest]:
    """Groups that may be compared with each other; those without a finished run take no part."""
    cells: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.accuracy is not None:
            cells.setdefault(repr(sorted(circumstances(entry.group.config).items())), []).append(entry)
    found = []
    for cell in cells.values():
        ranked = sorted(cell, key=lambda entry: -_mean(entry.accuracy))
        found.append(Contest(place=ranked[0].place, entries=tuple(ranked), pairs=tuple(_pairs(ranked))))
    return found


def _mean(found: Spread | None) -> float:
    return float("-inf") if found is None else found.mean


def _pairs(ranked: Sequence[Entry]) -> Iterator[Pair]:
    number = len(ranked) * (len(ranked) - 1) // 2
    every = combinations(ranked, 2) if len(ranked) <= ALL_PAIRS else ((ranked[0], other) for other in ranked[1:])
    for better, other in every:
        difference = PairedDifference.between(better.accuracy_by_seed, other.accuracy_by_seed)
        if difference is not None and difference.spread.mean < 0:  # further seeds of one side decide nothing
            better, other = other, better
            difference = PairedDifference.between(better.accuracy_by_seed, other.accuracy_by_seed)
        yield Pair(better=better, other=other, difference=difference, comparisons=number)


@dataclass(frozen=True, kw_only=True, slots=True)
class Priced:
    """A group, what it cost and what it reached."""

    entry: Entry
    accuracy: Spread
    cost: Mapping[str, float]
    """Mean over runs, by the names of :data:`COSTS`."""
    front: Mapping[str, bool]
    """Whether no other group of the place is at least as good for at most this cost."""


def priced(entries: Sequence[Entry]) -> list[Priced]:
    """Accuracy against cost, for the groups of which both are known."""
    points = []
    for entry in entries:
        costs = {name: spread(map(of, entry.ended)) for name, of in COSTS.items()}
        known = {name: cost.mean for name, cost in costs.items() if cost is not None}
        if entry.accuracy is not None and known:
            points.append((entry, entry.accuracy, known))
    return [
        Priced(
            entry=entry,
            accuracy=accuracy,
            cost=cost,
            front={
                name: not any(
                    _beats((other_cost[name], other_accuracy.mean), (mine, accuracy.mean))
                    for other, other_accuracy, other_cost in points
                    if other.place == entry.place and name in other_cost
                )
                for name, mine in cost.items()
            },
        )
        for entry, accuracy, cost in points
    ]


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether a (cost, accuracy) is at least as good as another one in both and better in one.

    >>> _beats((1.0, 0.9), (2.0, 0.9)), _beats((1.0, 0.9), (1.0, 0.9)), _beats((2.0, 0.95), (1.0, 0.9))
    (True, False, False)
    """
    return one != other and one[0] <= other[0] and one[1] >= other[1]
