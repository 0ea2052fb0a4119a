"""What the paper's argument rests on: which term of the rise SAM and LE-SAM follow, measured over training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure as Drawing

from lesam import Radius
from lesam.flatness.figures import shared_legend, whole_epochs
from lesam.lab.config.optimizer import own_settings, title
from lesam.lab.config.run import RunConfig
from lesam.lab.paper.accuracy import rows
from lesam.lab.paper.experiment import Cell, Planned, Report, Request, few_seeds
from lesam.lab.paper.grid import Grid
from lesam.lab.paper.stage import STAGE, TWENTIETHS
from lesam.lab.paper.terms import Probe, Slice, Terms, measure_terms, radius_of
from lesam.lab.report import style
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs.statistics import Spread

BATCHES: Mapping[str, int] = {"smoke": 2, "small": 8, "paper": 32}
"""Mini-batches at each checkpoint."""

METHODS = ("sam", "lesam")

MOST_KEPT = 50
"""Epochs of the longest run of which every one is kept."""

Measured = dict[int, list[Terms]]
"""By number of finished epochs."""


class Mechanism:
    """First-order term and curvature term of every kept epoch, and the two illustrations on a real network."""

    name = "mechanism"
    title = "First-order and curvature terms of SAM's and LE-SAM's perturbations over training"

    recipes = tuple(STAGE.values())
    searches = False
    seeds = staticmethod(few_seeds)

    def plan(self, request: Request) -> list[Planned]:
        """SAM and LE-SAM, with a checkpoint of every epoch where that is not too many."""
        variants = {label: replace(variant, changes=_keep_all) for label, variant in rows(*METHODS).items()}
        return Grid(name=self.name, title=self.title, rows=variants, columns=STAGE).plan(request)

    def report(self, request: Request, cells: Sequence[Cell], kept: Sequence[Mapping[str, Any]] = ()) -> Report:
        """Measure the terms where runs were kept; draw them, and the loss along real gradients."""
        measured: dict[str, Measured] = {}
        entries: list[dict[str, Any]] = []
        remarks: list[str] = []
        for cell in cells:
            found: Measured = {}
            for run in cell.runs:
                request.progress(f"measuring {run.path.name}")
                try:
                    terms = {
                        epoch: measure_terms(run, epoch, BATCHES[request.scale])
                        for epoch in sorted(checkpoints.epoch_ends(run.checkpoints))
                    }
                except ValueError as error:  # a run that diverged has no terms, the others have
                    remarks.append(f"{run.path.name} was left out: {error}")
                    continue
                for epoch, of_epoch in terms.items():
                    found.setdefault(epoch, []).extend(of_epoch)
            if found:
                measured[cell.row] = found
                entries.append(_entry(cell, found))
                missing = cell.configs[0].schedule.epochs - len(found)
                if missing and cell.configs[0].schedule.epochs <= MOST_KEPT:
                    remarks.append(f"{cell.row}: {missing} epochs were not kept by the runs that were there already.")
        if not measured:
            raise ValueError("none of the runs could be measured: " + " ".join(remarks))
        drawings: dict[str, Drawing] = {"terms": _draw_terms(measured, cells)}
        if len(measured) == len(METHODS) and checkpoints.epoch_ends(_of(cells, "lesam").runs[0].checkpoints):
            drawings["illustration"] = _illustrate(cells)
        return Report(
            tables={"Means over mini-batches of the training loss": _table(measured)},
            rows=entries,
            figures=drawings,
            notes=[
                "First-order term: rho |g|. Curvature term: eps'H eps / 2 with eps = rho g / |g|. Rise: the loss at "
                "the perturbed weights minus the loss at the weights. All on augmented mini-batches in train mode, as "
                "training sees them, pooled over seeds, with the budget of the epoch that follows the checkpoint. "
                "Spread: standard deviation of |g| over mini-batches, divided by its mean.",
                *remarks,
            ],
        )


def _keep_all(config: RunConfig) -> dict[str, Any]:
    """Short runs keep every epoch, long ones twenty of them."""
    epochs = config.schedule.epochs
    return {"record.keep_epochs": tuple(range(1, epochs + 1))} if epochs <= MOST_KEPT else TWENTIETHS


def _means(terms: Sequence[Terms]) -> dict[str, float]:
    names = ("first_order", "curvature", "rise", "norm", "rho")
    first, curvature, rise, norm, rho = (Spread.of([getattr(term, name) for term in terms]) for name in names)
    return {
        "first_order": first.mean,
        "curvature": curvature.mean,
        "rise": rise.mean,
        "norm": norm.mean,
        "norm_spread": norm.std / norm.mean,
        "first_order_spread": first.std,
        "rho": rho.mean,
    }


def _table(measured: Mapping[str, Measured]) -> list[list[str]]:
    head = ["", "epoch", "first-order", "curvature", "rise", "norm of g", "its spread", "std of first-order", "rho"]
    body = [
        [row, str(epoch), *(f"{value:.3g}" for value in _means(terms).values())]
        for row, epochs in measured.items()
        for epoch, terms in sorted(epochs.items())
    ]
    return [head, *body]


def _entry(cell: Cell, measured: Measured) -> dict[str, Any]:
    return {
        "row": cell.row,
        "seeds": [config.seed for config in cell.configs],
        "epochs": {epoch: {"n": len(terms), **_means(terms)} for epoch, terms in sorted(measured.items())},
        "runs": [run.path.name for run in cell.runs],
    }


def _draw_terms(measured: Mapping[str, Measured], cells: Sequence[Cell]) -> Drawing:
    figure = Drawing(figsize=(13, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for row, epochs in measured.items():
        colour = style.colour(next(cell.configs[0].method for cell in cells if cell.row == row))
        order = sorted(epochs)
        means = [_means(epochs[epoch]) for epoch in order]
        left.plot(order, [m["first_order"] for m in means], "-o", color=colour, label=f"{row}: first-order")
        left.plot(order, [m["curvature"] for m in means], "--s", color=colour, label=f"{row}: curvature")
        middle.plot(order, [_share(m) for m in means], "-o", color=colour, label=row)
        spreads = [m["norm"] * m["norm_spread"] for m in means]
        right.errorbar(order, [m["norm"] for m in means], spreads, color=colour, marker="o", capsize=3, label=row)
    left.set(xlabel="epoch", ylabel="part of the rise of the loss")
    left.set_yscale("symlog", linthresh=1e-3)
    middle.set(xlabel="epoch", ylabel="curvature's share (%)", ylim=(0, 100))
    right.set(xlabel="epoch", ylabel="|g| over mini-batches, mean and std")
    for axis in (left, middle, right):
        axis.grid(alpha=0.3)
        whole_epochs(axis)
    shared_legend(figure)
    return figure


def _share(means: Mapping[str, float]) -> float:
    """The curvature term's part of both terms in percent; NaN where there is no perturbation (annealed to zero)."""
    total = means["first_order"] + abs(means["curvature"])
    return abs(means["curvature"]) / total * 100 if total else math.nan


def _illustrate(cells: Sequence[Cell]) -> Drawing:
    """Fixed radius against fixed budget, on a mini-batch early in a run and one late, where gradients differ."""
    sam, lesam = (_of(cells, method) for method in METHODS)
    run = lesam.runs[0]
    fixed = float(own_settings(sam.configs[0].optimizer)["rho"])
    sigma = float(own_settings(lesam.configs[0].optimizer)["sigma"])
    budget = radius_of(lesam.configs[0])
    epochs = sorted(checkpoints.epoch_ends(run.checkpoints))
    probes = {epoch: Probe(run, epoch, batches=1) for epoch in (epochs[0], epochs[len(epochs) * 7 // 10])}
    farthest = 1.5 * max(fixed, *(probe.terms(budget)[0].rho for probe in probes.values()))
    distances = [float(t) for t in np.linspace(0, farthest, 41)]
    figure = Drawing(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    for colour, (epoch, probe) in zip(style.MOMENTS, probes.items(), strict=False):
        (found,) = probe.slices(distances)
        for axis in (left, right):
            label = f"after epoch {epoch}, |g| = {found.norm:.2g}"
            axis.plot(found.distances, found.rises, color=colour, label=label)
            axis.plot(found.distances, [t * found.norm for t in found.distances], ":", color=colour, linewidth=1)
        _mark_radius(left, found, fixed, colour)
        _mark_budget(right, found, budget, colour)
    left.axvline(fixed, color="black", linewidth=0.8)
    left.set(title=f"{title('sam')}: radius {fixed:g} fixed, rise follows |g|", ylabel="rise of the loss")
    right.axhline(sigma, color="black", linewidth=0.8)
    right.set(title=f"{title('lesam')}: budget {sigma:g} fixed, what exceeds it is curvature")
    for axis in (left, right):
        axis.set_xlabel("distance along the gradient (dotted: first order)")
    shared_legend(figure)
    return figure


def _of(cells: Sequence[Cell], method: str) -> Cell:
    return next(cell for cell in cells if cell.configs[0].method == method)


_NOTE: dict[str, Any] = {
    "textcoords": "offset points",
    "bbox": {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1},  # lines run behind the number
}


def _mark_radius(axis: Any, found: Slice, rho: float, colour: str) -> None:
    rise = float(np.interp(rho, found.distances, found.rises))
    axis.plot([rho], [rise], "o", color=colour)
    axis.annotate(f"{rise:.2g}", (rho, rise), xytext=(6, -10), **_NOTE, color=colour)


def _mark_budget(axis: Any, found: Slice, budget: Radius, colour: str) -> None:
    slope = torch.tensor(found.norm, dtype=torch.float64)
    rho, _, capped = (float(value) for value in budget(slope, step=0))
    rise = float(np.interp(rho, found.distances, found.rises))
    first = rho * found.norm
    axis.plot([rho, rho], [first, rise], color=colour, linewidth=6, alpha=0.35, solid_capstyle="butt")
    axis.plot([rho], [rise], "o", color=colour)
    note = f"{rise - first:+.2g}" + (" (at the cap)" if capped else "")
    axis.annotate(note, (rho, rise), xytext=(6, 4), **_NOTE, color=colour)


EXPERIMENT = Mechanism()
