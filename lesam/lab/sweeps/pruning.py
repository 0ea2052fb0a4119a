"""Which settings of a search are stopped early: over epochs by Optuna's pruners, over seeds by a paired comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from lesam.lab.runs.statistics import LEVEL, paired

if TYPE_CHECKING:
    import optuna

Prune = Literal["none", "median", "hyperband"]
JUDGED_AFTER = 2
"""Seeds after which a setting is compared with the best one."""
ROUNDING = 1e-12
"""Deviation of accuracies that is none."""


def pruner_of(name: Prune, *, epochs: int) -> optuna.pruners.BasePruner:
    """Optuna's pruner of a name, for runs of that many epochs."""
    import optuna

    if name == "median":
        return optuna.pruners.MedianPruner()
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=epochs)
    return optuna.pruners.NopPruner()


def clearly_worse(ours: Mapping[int, float], best: Mapping[int, float]) -> bool:
    r"""Whether the differences to the best setting, seed by seed, are below zero beyond doubt.

    With the mean :math:`\bar d` and the standard deviation :math:`s_d` of the differences over :math:`n \ge 2` common
    seeds, :math:`\bar d + t_{n-1}(0.95)\, s_d / \sqrt n < 0`, the upper end of the one-sided 95 % interval. Differences
    that are all equal have no spread to judge by, and stop nothing.

    >>> clearly_worse({0: 0.50, 1: 0.51}, {0: 0.90, 1: 0.90}), clearly_worse({0: 0.80, 1: 0.90}, {0: 0.90, 1: 0.91})
    (True, False)
    """
    difference = paired(ours, best)
    if difference is None or difference.n < JUDGED_AFTER or difference.std <= ROUNDING:
        return False
    from scipy import stats

    return bool(difference.mean + stats.t.isf(LEVEL, difference.n - 1) * difference.std / math.sqrt(difference.n) < 0)
