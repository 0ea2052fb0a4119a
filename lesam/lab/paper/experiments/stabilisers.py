"""LE-SAM with and without its two stabilisers, the cap on the radius and the annealing of the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure as Drawing

from lesam.flatness.figures import shared_legend
from lesam.lab.config.optimizer import own_settings
from lesam.lab.config.run import RunConfig
from lesam.lab.paper.experiment import Cell, Request, Variant
from lesam.lab.paper.grid import ACCURACIES, Grid, last
from lesam.lab.paper.stage import EVERY_EPOCH, STAGE, groups_of
from lesam.lab.report import plots


def _draw_stabilisers(request: Request, cells: Sequence[Cell]) -> Mapping[str, Drawing]:
    figure, axes = plots.panels(3, width=13)
    groups = groups_of(cells)
    first = {cell.runs[0].path: cell.row for cell in cells}
    names = {each.title: first[run.path] for each in groups for run in each.runs if run.path in first}
    for axis, metric in zip(axes, ("test_accuracy", "rho", "train_loss"), strict=True):
        plots.draw(axis, groups, metric, names=names)
    plots.logarithmic(axes[1])
    plots.logarithmic(axes[2])
    shared_legend(figure)
    return {"stabilisers": figure}


def _stabilised(*, cap: bool, anneal: bool) -> Variant:
    def changes(config: RunConfig) -> dict[str, Any]:
        own = own_settings(config.optimizer)["rho_max"]
        return {
            "optimizer.rho_max": (0.4 if own is None else own) if cap else None,
            "schedule.budget_anneal_start": config.schedule.epochs * 4 // 5 if anneal else None,
            "schedule.budget_warmup": 0,  # a third stabiliser, which the paper does not have
            **EVERY_EPOCH,
        }

    return Variant(method="lesam", changes=changes)


EXPERIMENT = Grid(
    name="stabilisers",
    title="LE-SAM with and without its cap and its annealing",
    rows={
        "cap and annealing": _stabilised(cap=True, anneal=True),
        "cap alone": _stabilised(cap=True, anneal=False),
        "annealing alone": _stabilised(cap=False, anneal=True),
        "neither": _stabilised(cap=False, anneal=False),
    },
    columns=STAGE,
    quantities={
        **ACCURACIES,
        "Training accuracy of the last epoch (%)": last("train_accuracy", 100.0),
        "Mean radius of the last epoch": last("rho"),
        "Largest radius of the last epoch": last("rho_max"),
        "Share of steps at the cap in the last epoch (%)": last("capped", 100.0),
    },
    draw=_draw_stabilisers,
)
