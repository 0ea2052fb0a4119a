"""Flatness of what SGD, SAM and LE-SAM found: Hessian spectrum, trace, low-pass filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lesam.flatness import figures
from lesam.lab.flatness import table
from lesam.lab.flatness.measures import FlatnessSettings
from lesam.lab.flatness.survey import Survey, survey
from lesam.lab.paper.accuracy import rows
from lesam.lab.paper.experiment import Cell, Planned, Report, Request, few_seeds
from lesam.lab.paper.grid import Grid
from lesam.lab.paper.stage import STAGE, TWENTIETHS
from lesam.lab.recipes.recipe import MARK, not_given
from lesam.lab.report import style
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.statistics import mean_and_spread

SETTINGS: Mapping[str, FlatnessSettings] = {
    "smoke": FlatnessSettings(samples=32, batch_size=32, eigenvalues=3, trace_samples=4, lpf_samples=3),
    # About a second for a Hessian product on two cores: some minutes a run.
    "small": FlatnessSettings(samples=256, batch_size=256, eigenvalues=10, trace_samples=20, lpf_samples=10),
    "paper": FlatnessSettings(lpf_samples=100),
}
CURVE_SAMPLES = 20
"""Draws of noise at most for each point of the low-pass filter over training."""


class Flatness:
    """The top eigenvalues and the trace half-way and at the end, the low-pass filter over training."""

    name = "flatness"
    title = "Hessian spectrum, trace and low-pass filter of SGD, SAM and LE-SAM"

    recipes = tuple(STAGE.values())
    searches = False
    seeds = staticmethod(few_seeds)

    def plan(self, request: Request) -> list[Planned]:
        """SGD, SAM and LE-SAM."""
        found = rows("sgd", "sam", "lesam")
        if request.scale == "paper":  # the low-pass filter is drawn over training
            found = {label: replace(variant, changes=lambda config: TWENTIETHS) for label, variant in found.items()}
        return Grid(name=self.name, title=self.title, rows=found, columns=STAGE).plan(request)

    def report(self, request: Request, cells: Sequence[Cell], kept: Sequence[Mapping[str, Any]] = ()) -> Report:
        """Measure every run where it was kept."""
        settings = replace(SETTINGS[request.scale], method=request.solver)

        def begin(label: str, run: RunFolder) -> None:
            request.progress(f"measuring {run.path.name}")

        found = survey(
            {cell.row: cell.runs for cell in cells},
            _half_way_and_end,
            settings=settings,
            curve_samples=CURVE_SAMPLES,
            progress=begin,
            skip_failures=True,  # a run that diverged has no curvature, the others have
        )
        if not found.results:
            raise ValueError("none of the runs could be measured: " + " ".join(found.left_out))
        look: dict[str, Any] = {
            "colours": {cell.row: style.colour(cell.configs[0].method) for cell in cells},
            "dashes": {cell.row: style.dash(cell.configs[0].method) for cell in cells},
            "summary": mean_and_spread,
        }
        return Report(
            tables={f"Largest eigenvalue, trace and low-pass filter {MARK}": table.rows(found)},
            rows=[_entry(cell, found) for cell in cells if cell.row in found.results],
            figures={
                "spectrum": figures.spectrum(found.of("eigenvalues"), found.of("trace"), **look),
                "low-pass": figures.low_pass(found.curves, **look),
            },
            notes=[
                table.notes(found),
                f"Cross-entropy on {settings.samples} training images without augmentation, BatchNorm in "
                f"{settings.mode} mode; low-pass filter with noise of standard deviation {settings.lpf_sigma}, "
                f"over training with {min(settings.lpf_samples, CURVE_SAMPLES)} draws. "
                f"{MARK} {not_given('images, mode, noise and numbers of draws')} "
                "The paper shows figures without numbers, so there is nothing to put beside these.",
                *found.left_out,
            ],
        )


EXPERIMENT = Flatness()


def _half_way_and_end(run: RunFolder) -> list[int]:
    """The kept epochs nearest to the middle and the end (100 and 200 at the paper's scale)."""
    epochs, half = sorted(checkpoints.epoch_ends(run.checkpoints)), run.config().schedule.epochs / 2
    return sorted({min(epochs, key=lambda epoch: abs(epoch - half)), epochs[-1]})


def _entry(cell: Cell, found: Survey) -> dict[str, Any]:
    epochs = found.results[cell.row]
    return {
        "row": cell.row,
        "seeds": [config.seed for config in cell.configs],
        "epochs": {epoch: [result.numbers() for result in results] for epoch, results in epochs.items()},
        "low_pass": {epoch: [point.estimate for point in points] for epoch, points in found.curves[cell.row].items()},
        "eigenvalues": {
            epoch: [r["eigenvalues"].values.tolist() for r in results] for epoch, results in epochs.items()
        },
        "runs": [run.path.name for run in cell.runs],
    }
