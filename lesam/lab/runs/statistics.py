"""Mean and spread of a few repetitions, and of the differences between two methods seed by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

Key = TypeVar("Key")
"""What names a repetition: a seed, or several."""
LEVEL = 0.05
"""Of tests; intervals cover the truth with the rest."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Number of values, their mean and their sample standard deviation (n - 1; NaN for a single value)."""

    n: int
    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise at least one value; one that is not finite leaves neither a mean nor a spread.

        >>> Spread.of([1.0, 2.0, 3.0])
        Spread(n=3, mean=2.0, std=1.0)
        """
        if not values:
            raise ValueError("cannot summarise no values at all")
        if not all(map(math.isfinite, values)):
            return cls(len(values), math.nan, math.nan)
        try:
            std = statistics.stdev(values) if len(values) > 1 else math.nan
            return cls(len(values), statistics.fmean(values), std)
        except OverflowError:  # finite, but their sum or the sum of their squares is not
            return cls(len(values), math.nan, math.nan)

    def text(self, scale: float = 100.0) -> str:
        """The mean and spread as a percentage.

        >>> Spread(3, 0.8151, 0.0008).text()
        '81.51 ± 0.08'
        """
        mean = f"{self.mean * scale:.2f}"
        return mean if math.isnan(self.std) else f"{mean} ± {self.std * scale:.2f}"

    def short(self) -> str:
        """The mean and spread with three and two significant digits, for quantities that are no percentages.

        >>> Spread(3, 0.031415, 0.002718).short()
        '0.0314 ± 0.0027'
        """
        mean = f"{self.mean:.3g}"
        return mean if math.isnan(self.std) else f"{mean} ± {self.std:.2g}"

    def signed(self, scale: float = 100.0) -> str:
        """A difference in percentage points with its sign, and the number of pairs.

        >>> Spread(3, 0.0151, 0.0008).signed()
        '+1.51 ± 0.08 (n = 3)'
        """
        return f"{'+' if self.mean >= 0 else ''}{self.text(scale)} (n = {self.n})"


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation, for figures that take a function to summarise repetitions by.

    >>> mean_and_spread([1.0, 2.0, 3.0])
    (2.0, 1.0)
    """
    spread = Spread.of(values)
    return spread.mean, spread.std


def paired(ours: Mapping[Key, float], theirs: Mapping[Key, float]) -> Spread | None:
    """The differences between values of the same seed; None where no seed is in both.

    What the seeds have in common (data order, initial weights) drops out, so that the spread of the differences is the
    one to judge a comparison by.

    >>> paired({0: 3.0, 1: 5.0, 2: 9.0}, {0: 2.0, 1: 3.0})
    Spread(n=2, mean=1.5, std=0.7071067811865476)
    """
    differences = [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
    return Spread.of(differences) if differences else None


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedDifference:
    r"""The differences of two methods seed by seed, with the interval and the p-value of the paired t-test.

    For differences with mean :math:`\bar d` and standard deviation :math:`s_d` over :math:`n` seeds, the simultaneous
    95 % interval of :math:`k` comparisons is
    :math:`\bar d \pm t_{n-1}\bigl(1 - \tfrac{0.05}{2k}\bigr)\, s_d / \sqrt n` (Bonferroni).
    """

    spread: Spread
    comparisons: int = 1
    """How many comparisons the interval is corrected for."""

    @classmethod
    def between(cls, ours: Mapping[Key, float], theirs: Mapping[Key, float], *, comparisons: int = 1) -> Self | None:
        """The difference over the seeds that both have; None with fewer than two.

        >>> PairedDifference.between({0: 3.0, 1: 5.0}, {0: 2.0, 1: 3.0}).spread.mean
        1.5
        """
        spread = paired(ours, theirs)
        return None if spread is None or spread.n < 2 else cls(spread=spread, comparisons=comparisons)

    @property
    def half_width(self) -> float:
        """Of the corrected 95 % interval."""
        return self.half_width_of(self.spread.n)

    @property
    def interval(self) -> tuple[float, float]:
        """The corrected 95 % interval."""
        return self.spread.mean - self.half_width, self.spread.mean + self.half_width

    @property
    def p(self) -> float:
        """Two-sided p-value of the paired t-test, not corrected."""
        if self.spread.std == 0:
            return 1.0 if self.spread.mean == 0 else 0.0
        from scipy import stats  # a second to import, which most users of this module need not wait for

        t = self.spread.mean / (self.spread.std / math.sqrt(self.spread.n))
        return float(2 * stats.t.sf(abs(t), self.spread.n - 1))

    def half_width_of(self, n: int) -> float:
        """The half width that the same spread would have over another number of seeds."""
        from scipy import stats

        quantile = float(stats.t.isf(LEVEL / (2 * self.comparisons), n - 1))
        return quantile * self.spread.std / math.sqrt(n)
