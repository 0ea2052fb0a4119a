"""What happens over training: the radius, the late switch, sensitivity to the budget, and the stabilisers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import pyplot
from matplotlib.figure import Figure as Drawing

from lesam.lab.config.optimizer import LESAMConfig
from lesam.lab.config.run import RunConfig
from lesam.lab.paper.experiment import Cell, Request, Variant
from lesam.lab.paper.grid import ACCURACIES, Grid, last, last_test
from lesam.lab.report import plots
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.repetitions import Group, group

STAGE = {"CIFAR-100, ResNet-18": "cifar100-resnet18"}
SIGMAS = (0.30, 0.35, 0.40, 0.45, 0.50)
"""Budgets of the paper's figure on sensitivity, for a recipe whose own is 0.35."""

UNCAPPED = "optimizer.rho_max=none"
NOT_ANNEALED = "schedule.budget_anneal_start=none"
EVERY_EPOCH = "record.evaluate_every=1"
"""For curves of test accuracy; part of no run's identity, so runs that are finished stay as they are."""


def groups_of(cells: Sequence[Cell]) -> list[Group]:
    """The runs of all cells as groups for figures."""
    return group(run for cell in cells for run in cell.runs)


def _radii(run: RunFolder) -> list[float]:
    """Mean radius of each epoch before the budget is annealed to zero, which takes the radius with it."""
    start = run.config().schedule.budget_anneal_start
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


RADIUS = Grid(
    name="radius",
    title="Perturbation radius of LE-SAM over training",
    rows={
        "LE-SAM": Variant(method="lesam"),
        "LE-SAM, no cap, no annealing": Variant(method="lesam", changes=lambda config: [UNCAPPED, NOT_ANNEALED]),
        "SAM": Variant(method="sam"),
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


def _switch(config: RunConfig) -> list[str]:
    """The switch in epoch 160 of 200 or at the same share of shorter runs; its checkpoint is kept for its relatives."""
    epochs = config.schedule.epochs
    at = epochs * 4 // 5
    return [f"schedule.switch_at={at}", f"record.keep_epochs={at},{epochs}", EVERY_EPOCH]


def _draw_switch(request: Request, cells: Sequence[Cell]) -> Mapping[str, Drawing]:
    return {"late-switch": plots.switch(groups_of(cells))}


def _gaps(request: Request, cells: Sequence[Cell]) -> list[str]:
    means = {cell.row: float(np.mean([last_test(run) for run in cell.runs])) for cell in cells}
    return [
        f"{method} throughout minus {method} from the switch on: "
        f"{means[f'{method} throughout'] - means[f'SGD, then {method}']:+.2f} points (mean over seeds)."
        for method in ("SAM", "LE-SAM")
        if f"{method} throughout" in means and f"SGD, then {method}" in means
    ]


LATE_SWITCH = Grid(
    name="late-switch",
    title="Throughout training, or from the last fifth on",
    rows={
        "SAM throughout": Variant(method="sam", changes=lambda config: [EVERY_EPOCH]),
        "SGD, then SAM": Variant(method="sam", changes=_switch),
        # The paper runs LE-SAM without its stabilisers here.
        "LE-SAM throughout": Variant(method="lesam", changes=lambda config: [UNCAPPED, NOT_ANNEALED, EVERY_EPOCH]),
        "SGD, then LE-SAM": Variant(method="lesam", changes=lambda config: [UNCAPPED, NOT_ANNEALED, *_switch(config)]),
    },
    columns=STAGE,
    draw=_draw_switch,
    remarks=_gaps,
)


def _budget(sigma: float) -> Variant:
    """The paper's budget, scaled to recipes whose own is not 0.35."""

    def changes(config: RunConfig) -> list[str]:
        own = config.optimizer
        if not isinstance(own, LESAMConfig):
            raise TypeError(f"a LE-SAM recipe was expected, got {type(own).__name__}")
        return [f"optimizer.sigma={sigma / 0.35 * own.sigma:.6g}"]

    return Variant(method="lesam", changes=changes)


def _draw_sensitivity(request: Request, cells: Sequence[Cell]) -> Mapping[str, Drawing]:
    return {"sensitivity": plots.sensitivity(groups_of(cells))}


SENSITIVITY = Grid(
    name="sensitivity",
    title="Sensitivity of LE-SAM to its loss budget",
    rows={f"sigma = {sigma:.2f} (times own / 0.35)": _budget(sigma) for sigma in SIGMAS},
    columns=STAGE,
    draw=_draw_sensitivity,
)


def _draw_stabilisers(request: Request, cells: Sequence[Cell]) -> Mapping[str, Drawing]:
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4), constrained_layout=True)
    for number, cell in enumerate(cells):
        (members,) = groups_of([cell])
        for axis, metric in zip(axes, ("test_accuracy", "rho", "train_loss"), strict=True):
            plots.draw(axis, [members], metric, colour=f"C{number}", label=cell.row)
    axes[1].set_yscale("log")
    axes[2].set_yscale("log")
    axes[0].legend(fontsize="small")
    return {"stabilisers": figure}


def _stabilised(*, cap: bool, anneal: bool) -> Variant:
    def changes(config: RunConfig) -> list[str]:
        start = config.schedule.epochs * 4 // 5
        own = config.optimizer
        limit = own.rho_max if isinstance(own, LESAMConfig) and own.rho_max is not None else 0.4
        return [
            f"optimizer.rho_max={limit if cap else None}",
            f"schedule.budget_anneal_start={start if anneal else None}",
            EVERY_EPOCH,
        ]

    return Variant(method="lesam", changes=changes)


STABILISERS = Grid(
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
