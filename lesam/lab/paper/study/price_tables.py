r"""The price as tables, all from its records: what each method keeps of LE-SAM's gain, and at how many passes.

With :math:`a_s, l_s, b_s` the test accuracies of a method, LE-SAM and the base with seed :math:`s`, the share of the
gain that the method keeps is :math:`\sum_s (a_s - b_s) / \sum_s (l_s - b_s)` over the first ten seeds that all three
have, so that shares of entries with more seeds can be compared with those of the others. It is
*not inferior* to LE-SAM if the lower end of the plain 95 % interval of :math:`a_s - l_s` lies above minus a tenth of
LE-SAM's gain. A stage *counts* if LE-SAM's gain there is at least ten standard errors of :math:`l_s - b_s`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lesam.lab.config.optimizer import title
from lesam.lab.paper.study.entries import Ranges
from lesam.lab.paper.study.price import OURS, PRICE
from lesam.lab.paper.study.records import Record
from lesam.lab.paper.study.spent import spent
from lesam.lab.paper.study.tables import StageTables, Table, accuracy_words, chosen_words, difference_words
from lesam.lab.paper.study.verdicts import Difference
from lesam.lab.runs.statistics import Spread

LESAM = title("lesam")
TENTH = 0.1
"""Part of LE-SAM's gain that a method may lose."""
STANDARD_ERRORS = 10
"""Of LE-SAM's gain, for a stage to count."""
MOST_PASSES = 1.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """An entry on a stage: what it cost and what it reached."""

    name: str
    passes: float
    """Of the mean step of all epochs."""
    seconds: float | None
    """Of one core, in turns with the others; None where the entry was not timed."""
    scores: Mapping[int, float]
    """Test accuracies in percent, by seed."""

    @property
    def spread(self) -> Spread:
        """Of the accuracies."""
        return Spread.of(list(self.scores.values()))


CLOCK = "seconds of a core"
"""What seconds are of: entries that were timed in turns."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """Price and accuracy of every entry of a stage that has repetitions."""

    stage: Ranges
    records: Sequence[Record]
    scale: str = "small"

    @property
    def tables(self) -> StageTables:
        """What every contest has."""
        return StageTables(self.stage, self.records, self.scale, PRICE)

    @property
    def points(self) -> dict[str, Point]:
        """By name of the entry, in the order of the contest."""
        found = {}
        seconds = {one.entry: one.seconds for one in self.tables.of("time")}  # those of runs depend on what ran beside
        for name, runs in self.tables.repetitions().items():
            passes = Spread.of([one.last.get("passes") or 0.0 for one in runs]).mean
            scores = {one.seed: one.score for one in runs}
            found[name] = Point(name=name, passes=passes, seconds=seconds.get(name), scores=scores)
        return found

    @property
    def base(self) -> str:
        """The entry that all others are to beat."""
        return title(self.stage.base)

    @property
    def gain(self) -> Difference | None:
        """LE-SAM's over the base."""
        return self.between(LESAM, self.base)

    @property
    def counts(self) -> bool:
        """Whether all of LE-SAM and the base has run and the gain is large against its noise."""
        return self.complete(LESAM) and self.complete(self.base) and self.standard_errors >= STANDARD_ERRORS

    @property
    def standard_errors(self) -> float:
        """LE-SAM's gain in units of its standard error."""
        if self.gain is None:
            return 0.0
        error = self.gain.spread.std / math.sqrt(self.gain.spread.n)
        return self.gain.spread.mean / error if error else math.copysign(math.inf, self.gain.spread.mean)

    def between(self, ours: str, theirs: str) -> Difference | None:
        """The difference of two entries; None where one has not run."""
        points = self.points
        return Difference.between(points[ours].scores, points[theirs].scores) if {ours, theirs} <= {*points} else None

    def complete(self, name: str) -> bool:
        """Whether an entry has all its repetitions."""
        return name in self.points and len(self.points[name].scores) >= self.planned[name]

    @property
    def planned(self) -> dict[str, int]:
        """Repetitions of each entry when all have run."""
        return PRICE.repeats(self.stage, self.scale)

    def share(self, name: str) -> float | None:
        """Of LE-SAM's gain; None where there is none, or fewer than two seeds have run."""
        points, base = self.points, self.base
        if not {name, base, LESAM} <= {*points}:
            return None
        ours, theirs, plain = (points[one].scores for one in (name, LESAM, base))
        common = sorted(seed for seed in ours if seed in theirs and seed in plain)[: self.stage.repeats]
        whole = math.fsum(theirs[seed] - plain[seed] for seed in common)
        return math.fsum(ours[seed] - plain[seed] for seed in common) / whole if whole > 0 and len(common) > 1 else None

    def verdict(self, name: str) -> str:
        """Whether an entry is not inferior to LE-SAM."""
        to_lesam, gain = self.between(name, LESAM), self.gain
        if to_lesam is None or gain is None:
            return "not run yet"
        low, high = to_lesam.interval
        limit = -TENTH * gain.spread.mean
        found = "not inferior" if low > limit else "inferior" if high < limit else "undecided"
        n, planned = to_lesam.spread.n, self.planned[name]
        return found if n >= planned else f"so far ({n} of {planned}): {found}"

    def results(self) -> Table:
        """Price and accuracy of every entry, its differences to LE-SAM and to the base, and what it keeps."""
        base, points = self.base, self.points
        head = ("entry", "passes", CLOCK, "chosen on validation", "n", "test accuracy (%)")
        rows: Table = [(*head, f"to {LESAM}", f"to {base}", f"of {LESAM}'s gain (%)")]
        for name, runs in self.tables.repetitions().items():
            point, share = points[name], self.share(name)
            bars = ((bar, points[bar].scores if bar in points else {}) for bar in (LESAM, base))
            rows.append(
                (
                    name,
                    f"{point.passes:.3g}",
                    "" if point.seconds is None else f"{point.seconds:.3g}",
                    chosen_words(self.tables, runs[0]),
                    str(len(runs)),
                    accuracy_words(runs),
                    *("" if name == bar else difference_words(point.scores, scores) for bar, scores in bars),
                    "" if share is None or name == base else f"{100 * share:.0f}",
                )
            )
        return rows


def summary(frontiers: Sequence[Frontier]) -> Table:
    """What each entry keeps over the stages that count and that it has run on: in the mean, and where it is least."""
    rows: Table = [("entry", "passes", "stages", "kept, mean (%)", "kept, worst (%)", f"not inferior to {LESAM}")]
    counted = [one for one in frontiers if one.counts]
    names = dict.fromkeys(name for one in counted for name in one.points)
    for name in names:
        of = {
            one.stage.recipe: one
            for one in counted
            if one.complete(name) and name not in (LESAM, title(one.stage.base))
        }
        shares = {recipe: 100 * share for recipe, one in of.items() if (share := one.share(name)) is not None}
        if not shares:
            continue
        worst = min(shares, key=lambda recipe: shares[recipe])
        good = [recipe for recipe, one in of.items() if one.verdict(name) == "not inferior"]
        rows.append(
            (
                name,
                f"{Spread.of([one.points[name].passes for one in of.values()]).mean:.3g}",
                f"{len(shares)} of {len(counted)}",
                f"{Spread.of(list(shares.values())).mean:.0f}",
                f"{shares[worst]:.0f} ({worst})",
                f"on {len(good)} of {len(of)}",
            )
        )
    return rows


def target(frontiers: Sequence[Frontier]) -> Table:
    """Whether our methods lose at most a tenth of LE-SAM's gain, stage by stage."""
    head = ("stage", f"{LESAM}'s gain", "in standard errors", "counts", "method", f"to {LESAM}", "a tenth of the gain")
    rows: Table = [(*head, "passes", "verdict")]
    for one, ours in ((one, title(method)) for one in frontiers for method in OURS):
        gain, to_lesam, point = one.gain, one.between(ours, LESAM), one.points.get(ours)
        if gain is None:
            continue
        rows.append(
            (
                one.stage.recipe,
                f"{gain.spread.mean:+.2f}",
                f"{one.standard_errors:.1f}",
                "yes" if one.counts else "no",
                ours,
                "" if to_lesam is None else difference_words(one.points[ours].scores, one.points[LESAM].scores),
                f"{TENTH * gain.spread.mean:.2f}",
                "" if point is None else f"{point.passes:.3g}",
                one.verdict(ours)
                if point is None or round(point.passes, 6) <= MOST_PASSES  # a mean of single precision
                else f"more than {MOST_PASSES} passes",
            )
        )
    return rows


def tables(records: Sequence[Record], scale: str = "small") -> dict[str, Table]:
    """All tables by heading; one that nothing has run for has no rows."""
    frontiers = [Frontier(stage, records, scale) for stage in PRICE.stages]
    found: dict[str, Table] = {
        "price: summary": summary(frontiers),
        "price: target": target(frontiers),
        "price: spent": spent(PRICE, records, scale),
    }
    for one in frontiers:
        found[f"{one.stage.recipe}: price"] = one.results()
        found[f"{one.stage.recipe}: price, searches"] = one.tables.searches()
    return {heading: table if len(table) > 1 else [] for heading, table in found.items()}
