r"""How a claim is judged: paired differences, intervals and p-values corrected for the number of comparisons.

For seeds :math:`s` and two entries with accuracies :math:`a_s, b_s`, the differences :math:`d_s = a_s - b_s` have mean
:math:`\bar d` and standard deviation :math:`s_d`. The simultaneous interval of :math:`k` comparisons is

.. math:: \bar d \pm t_{n-1}\bigl(1 - \tfrac{0.05}{2k}\bigr)\, s_d / \sqrt n

(Bonferroni). A claim *holds* if the interval lies above 0, *does not hold* if its upper end lies below a fifth of SAM's
gain over the base, and is *undecided* otherwise. A claim that an entry loses at most :math:`\tau` holds if the interval
lies above :math:`-\tau`, and does not hold if it lies below.
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

    def verdict(self, gain: float, tolerance: float = 0.0) -> Verdict:
        """Judge the claim that the difference is above 0, where ``gain`` is SAM's over the base.

        With ``tolerance`` the claim is that it is above minus that.

        >>> from lesam.lab.runs.statistics import Spread
        >>> clear = Difference(spread=Spread(20, 2.0, 0.5), comparisons=10)
        >>> clear.verdict(gain=5.0)
        'holds'
        >>> small = Difference(spread=Spread(20, -0.05, 0.2), comparisons=1)
        >>> small.verdict(gain=2.0), small.verdict(gain=2.0, tolerance=0.2)
        ('does not hold', 'holds')
        """
        return self._verdict(self.spread.n, gain, tolerance)

    def deciding_n(self, gain: float, tolerance: float = 0.0) -> int | None:
        """Seeds with which this mean and spread would decide; None where even ten thousand would not."""
        if self.verdict(gain, tolerance) != "undecided":
            return self.spread.n
        low, high = self.spread.n, LARGEST
        if self._verdict(high, gain, tolerance) == "undecided":
            return None
        while high - low > 1:
            middle = (low + high) // 2
            open_still = self._verdict(middle, gain, tolerance) == "undecided"
            low, high = (middle, high) if open_still else (low, middle)
        return high

    def _verdict(self, n: int, gain: float, tolerance: float) -> Verdict:
        half = self.half_width_of(n)
        if self.spread.mean - half > -tolerance:
            return "holds"
        limit = -tolerance if tolerance else SHARE * gain
        return "does not hold" if self.spread.mean + half < limit else "undecided"


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
