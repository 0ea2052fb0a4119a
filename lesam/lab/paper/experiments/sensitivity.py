"""Accuracy of LE-SAM over its loss budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure as Drawing

from lesam.lab.config.optimizer import own_settings
from lesam.lab.config.run import RunConfig
from lesam.lab.paper.experiment import Cell, Request, Variant
from lesam.lab.paper.grid import Grid
from lesam.lab.paper.stage import STAGE, groups_of
from lesam.lab.report import plots
from lesam.lab.runs.folder import Row

SIGMAS = (0.30, 0.35, 0.40, 0.45, 0.50)
"""Budgets of the paper's figure on sensitivity, for a recipe whose own is 0.35."""


def _budget(sigma: float) -> Variant:
    """The paper's budget, scaled to recipes whose own is not 0.35."""

    def changes(config: RunConfig) -> dict[str, Any]:
        return {"optimizer.sigma": float(f"{sigma / 0.35 * own_settings(config.optimizer)['sigma']:.6g}")}

    return Variant(method="lesam", changes=changes)


def _label(request: Request, row: Row) -> str:
    """The budget itself, with a mark behind the recipe's own."""
    own = Variant(method="lesam").config(row["recipe"], request.scale, 0, request.changes)
    sigma = row["settings"]["optimizer.sigma"]
    return f"sigma = {sigma:.3g}" + (" (the recipe's own)" if sigma == own_settings(own.optimizer)["sigma"] else "")


def _draw_sensitivity(request: Request, cells: Sequence[Cell]) -> Mapping[str, Drawing]:
    return {"sensitivity": plots.sensitivity(groups_of(cells))}


EXPERIMENT = Grid(
    name="sensitivity",
    title="Sensitivity of LE-SAM to its loss budget",
    rows={f"sigma = {sigma:.2f} (times own / 0.35)": _budget(sigma) for sigma in SIGMAS},
    columns=STAGE,
    label=_label,
    draw=_draw_sensitivity,
)
