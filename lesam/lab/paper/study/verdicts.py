r"""How a claim is judged: paired differences, intervals and p-values corrected for the number of comparisons.

For seeds :math:`s` and two entries with accuracies :math:`a_s, b_s`, the differences :math:`d_s = a_s - b_s` have mean
:math:`\bar d` and standard deviation :math:`s_d`. The simultaneous interval of :math:`k` comparisons is

.. math:: \bar d \pm t_{n-1}\bigl(1 - \tfrac{0.05}{2k}\bigr)\, s_d / \sqrt n

(Bonferroni). A claim *holds* if the interval lies above 0, *does not hold* if its upper end lies below a fifth of SAM's
gain over the base, and is *undecided* otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import stats

from lesam.lab.runs.statistics import Spread, paired

LEVEL = 0.05
SHARE = 0.2
"""Part of SAM's gain below which a difference does not matter."""
LARGEST = 10_000

Verdict = Literal["holds", "does not hold", "undecided"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A paired difference in percentage points."""

    spread: Spread
    comparisons: int
    """How many comparisons the interval is corrected for."""

    @classmethod
    def between(
        cls, ours: Mapping[int, float], theirs: Mapping[int, float], *, comparisons: int = 1
    ) -> Difference | None:
        """The difference of two entries over the seeds that both have; None with fewer than two.

        >>> Difference.between({0: 3.0, 1: 5.0}, {0: 2.0, 1: 3.0}).spread.mean
        1.5
        """
        spread = paired(ours, theirs)
        return None if spread is None or spread.n < 2 else cls(spread=spread, comparisons=comparisons)

    @property
    def half_width(self) -> float:
        """Of the corrected 95 % interval."""
        return self._half_width(self.spread.n)

    @property
    def interval(self) -> tuple[float, float]:
        """The corrected 95 % interval."""
        return self.spread.mean - self.half_width, self.spread.mean + self.half_width

    @property
    def p(self) -> float:
        """Two-sided p-value of the paired t-test, not corrected."""
        if self.spread.std == 0:
            return 1.0 if self.spread.mean == 0 else 0.0
        t = self.spread.mean / (self.spread.std / math.sqrt(self.spread.n))
        return float(2 * stats.t.sf(abs(t), self.spread.n - 1))

    def verdict(self, gain: float) -> Verdict:
        """Judge the claim that the difference is above 0, where ``gain`` is SAM's over the base.

        >>> clear = Difference(spread=Spread(20, 2.0, 0.5), comparisons=10)
        >>> clear.verdict(gain=5.0)
        'holds'
        """
        return self._verdict(self.spread.n, gain)

    def deciding_n(self, gain: float) -> int | None:
        """Seeds with which this mean and spread would decide; None where even ten thousand would not."""
        if self.verdict(gain) != "undecided":
            return self.spread.n
        low, high = self.spread.n, LARGEST
        if self._verdict(high, gain) == "undecided":
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._verdict(middle, gain) == "undecided" else (low, middle)
        return high

    def _verdict(self, n: int, gain: float) -> Verdict:
        half = self._half_width(n)
        if self.spread.mean - half > 0:
            return "holds"
        return "does not hold" if self.spread.mean + half < SHARE * gain else "undecided"

    def _half_width(self, n: int) -> float:
        quantile = float(stats.t.isf(LEVEL / (2 * self.comparisons), n - 1))
        return quantile * self.spread.std / math.sqrt(n)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected by Holm's step-down rule, in the given order.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
