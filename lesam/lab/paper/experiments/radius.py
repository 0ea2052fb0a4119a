"""The radius of LE-SAM over training, with and without its stabilisers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure as Drawing

from lesam.lab.config.optimizer import title
from lesam.lab.config.run import moment
from lesam.lab.paper.experiment import Cell, Request, Variant
from lesam.lab.paper.grid import Grid, last, last_test
from lesam.lab.paper.stage import STAGE, UNSTABILISED, groups_of
from lesam.lab.report import plots
from lesam.lab.runs.folder import RunFolder


def _radii(run: RunFolder) -> list[float]:
    """Mean radius of each epoch before the budget is annealed to zero, which takes the radius with it."""
    schedule = run.config().schedule
    start = None if schedule.budget_anneal_start is None else moment(schedule.budget_anneal_start, schedule.epochs)
    rows = [row for row in run.metrics() if row.get("rho") is not None]
    return [row["rho"] for row in rows if start is None or row["epoch"] < start]


def _first_radius(run: RunFolder) -> float | None:
    return next(iter(_radii(run)), None)


def _smallest_radius(run: RunFolder) -> float | None:
    return min(_radii(run), default=None)


def _largest_after(run: RunFolder) -> float | None:
    """The largest mean radius after the smallest one."""
    radii = _radii(run)
    return max(radii[int(np.argmin(radii)) :]) if radii else None


def _draw_radius(request: Request, cells: Sequence[Cell]) -> Mapping[str, Drawing]:
    return {"radius": plots.radius(groups_of(cells))}


EXPERIMENT = Grid(
    name="radius",
    title="Perturbation radius of LE-SAM over training",
    rows={
        title("lesam"): Variant(method="lesam"),
        f"{title('lesam')}, no cap, no annealing": Variant(method="lesam", changes=lambda config: UNSTABILISED),
        title("sam"): Variant(method="sam"),
    },
    columns=STAGE,
    quantities={
        "Mean radius of the first epoch": _first_radius,
        "Smallest mean radius of an epoch before annealing": _smallest_radius,
        "Largest mean radius after the smallest, before annealing": _largest_after,
        "Share of steps at the cap in the last epoch (%)": last("capped", 100.0),
        "Test accuracy of the last epoch (%)": last_test,
    },
    draw=_draw_radius,
)
