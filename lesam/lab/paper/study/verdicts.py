r"""How a claim is judged: paired differences, intervals and p-values corrected for the number of comparisons.

For seeds :math:`s` and two entries with accuracies :math:`a_s, b_s`, the differences :math:`d_s = a_s - b_s` have mean
:math:`\bar d` and standard deviation :math:`s_d`. The simultaneous interval of :math:`k` comparisons is

.. math:: \bar d \pm t_{n-1}\bigl(1 - \tfrac{0.05}{2k}\bigr)\, s_d / \sqrt n

(Bonferroni). A claim *holds* if the interval lies above 0, *does not hold* if its upper end lies below a fifth of SAM's
gain over the base, and is *undecided* otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lesam.lab.runs.statistics import PairedDifference

SHARE = 0.2
"""Part of SAM's gain below which a difference does not matter."""
LARGEST = 10_000

Verdict = Literal["holds", "does not hold", "undecided"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference(PairedDifference):
    """A paired difference in percentage points, as a claim about it is judged."""

    def verdict(self, gain: float) -> Verdict:
        """Judge the claim that the difference is above 0, where ``gain`` is SAM's over the base.

        >>> from lesam.lab.runs.statistics import Spread
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
        half = self.half_width_of(n)
        if self.spread.mean - half > 0:
            return "holds"
        return "does not hold" if self.spread.mean + half < SHARE * gain else "undecided"


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
