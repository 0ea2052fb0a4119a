"""Intervals and p-values against scipy and a simulation; verdicts at their boundaries."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lesam.lab.paper.study.verdicts import Difference, holm
from lesam.lab.runs.statistics import Spread


def difference(mean: float, std: float, n: int, comparisons: int = 1) -> Difference:
    return Difference(spread=Spread(n, mean, std), comparisons=comparisons)


def test_interval_and_p_are_those_of_the_paired_t_test():
    source = np.random.default_rng(0)
    ours, theirs = source.normal(1.0, 1.0, 12), source.normal(0.0, 1.0, 12)
    found = Difference.between(dict(enumerate(ours)), dict(enumerate(theirs)))
    assert found is not None
    reference = stats.ttest_rel(ours, theirs)
    assert found.p == pytest.approx(reference.pvalue)
    assert found.interval == pytest.approx(tuple(reference.confidence_interval(0.95)))


def test_corrected_intervals_cover_all_truths_at_once():
    source, misses = np.random.default_rng(1), 0
    for _ in range(400):
        every = [
            Difference.between(dict(enumerate(source.normal(size=8))), dict.fromkeys(range(8), 0.0), comparisons=10)
            for _ in range(10)
        ]
        misses += any(not one.interval[0] <= 0.0 <= one.interval[1] for one in every if one)
    assert 0 < misses / 400 < 0.08  # 0.05 is promised, 0.033 is four standard errors of the estimate


def test_only_seeds_of_both_count_and_two_are_needed():
    assert Difference.between({0: 1.0, 1: 2.0}, {1: 1.0, 2: 5.0}) is None
    found = Difference.between({0: 1.0, 1: 2.0, 5: 4.0}, {1: 1.0, 0: 1.0})
    assert found is not None
    assert found.spread.n == 2


@pytest.mark.parametrize(
    ("mean", "std", "verdict"),
    [(2.0, 0.5, "holds"), (0.2, 0.5, "does not hold"), (-3.0, 0.5, "does not hold"), (0.9, 3.0, "undecided")],
)
def test_verdicts(mean: float, std: float, verdict: str):
    assert difference(mean, std, 20).verdict(gain=5.0) == verdict


@pytest.mark.parametrize(("mean", "std", "gain"), [(0.9, 3.0, 5.0), (0.3, 2.0, 5.0), (-0.5, 6.0, 2.0)])
def test_the_n_that_would_decide_is_the_first_that_does(mean: float, std: float, gain: float):
    n = difference(mean, std, 5).deciding_n(gain)
    assert n is not None
    assert difference(mean, std, n).verdict(gain) != "undecided"
    assert difference(mean, std, n - 1).verdict(gain) == "undecided"


def test_holm_against_its_definition():
    source = np.random.default_rng(2)
    for _ in range(20):
        p_values = source.uniform(size=6).tolist()
        ordered = sorted(p_values)
        for p, corrected in zip(p_values, holm(p_values), strict=True):
            rank = ordered.index(p)
            assert corrected == pytest.approx(max(min(1.0, (6 - j) * ordered[j]) for j in range(rank + 1)))
