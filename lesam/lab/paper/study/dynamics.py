r"""What the epochs of a run say about its perturbation: how large it is when, and which term its rise is made of.

The rise of the loss is :math:`\rho\,\langle g, \hat\epsilon\rangle` to first order. Its share of the measured rise is 1
where the loss is a plane, and below it where curvature adds to the rise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lesam.lab.runs.statistics import Spread

Row = Mapping[str, Any]

PHASES: Mapping[str, tuple[float, float]] = {"start": (0.0, 0.02), "early": (0.1, 0.3), "late": (0.7, 0.8)}
"""Shares of training; a budget is annealed from 0.8 on."""


def dynamics(rows: Sequence[Row]) -> dict[str, float]:
    """Mean radius, and mean share of the first-order term in the rise, of each phase that has them.

    >>> rows = [{"rho": 2.0, "slope": 0.1, "sharpness": 0.4}] * 50
    >>> dynamics(rows)["radius_late"], dynamics(rows)["first_order_late"]
    (2.0, 0.5)
    """
    found = {}
    for phase, (start, stop) in PHASES.items():
        of = rows[int(start * len(rows)) : max(1, int(stop * len(rows)))]
        radii = [row["rho"] for row in of if row.get("rho")]
        shares = [row["rho"] * row["slope"] / row["sharpness"] for row in of if _rose(row)]
        if radii:
            found[f"radius_{phase}"] = Spread.of(radii).mean
        if shares:
            found[f"first_order_{phase}"] = Spread.of(shares).mean
    return found


def _rose(row: Row) -> bool:
    return bool(row.get("rho") and row.get("slope") and (row.get("sharpness") or 0.0) > 0.0)
