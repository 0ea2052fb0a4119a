"""Flatness of what SGD, SAM and LE-SAM found: Hessian spectrum, trace, low-pass filter, loss landscape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lesam.flatness import Landscape, LowPass, figures
from lesam.lab.flatness.landscape import LandscapeSettings, measure_landscape
from lesam.lab.flatness.measures import FlatnessResult, FlatnessSettings, low_pass_curve, measure_run
from lesam.lab.flatness.subject import kept
from lesam.lab.paper.experiment import Cell, Planned, Report, Request
from lesam.lab.paper.experiments.cifar import rows
from lesam.lab.paper.experiments.radius import STAGE
from lesam.lab.paper.grid import OVER_SEEDS, Grid
from lesam.lab.runs.statistics import Spread

SETTINGS: Mapping[str, FlatnessSettings] = {
    "smoke": FlatnessSettings(samples=32, batch_size=32, eigenvalues=3, trace_samples=4, lpf_samples=3),
    # About a second for a Hessian product on two cores: some minutes a run.
    "small": FlatnessSettings(samples=256, batch_size=256, eigenvalues=10, trace_samples=20, lpf_samples=10),
    "paper": FlatnessSettings(lpf_samples=100),
}
CURVE_SAMPLES = 20
"""Draws of noise at most for each point of the low-pass filter over training."""
LANDSCAPES: Mapping[str, LandscapeSettings] = {
    "smoke": LandscapeSettings(points=5, samples=32),
    "small": LandscapeSettings(points=21, samples=500, batch_size=500),
    "paper": LandscapeSettings(),
}


HIGHEST = 10.0
"""Losses above are cut in the figures of landscapes, whose corners would otherwise hide the middle."""


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """Measurements on one and the same set of trained networks."""

    name: str
    title: str

    def plan(self, request: Request) -> list[Planned]:
        """SGD, SAM and LE-SAM."""
        grid = Grid(name=self.name, title=self.title, rows=rows("sgd", "sam", "lesam"), columns=STAGE)
        return grid.plan(request)


class Flatness(_Trained):
    """The top eigenvalues and the trace half-way and at the end, the low-pass filter over training."""

    def report(self, request: Request, cells: Sequence[Cell]) -> Report:
        """Measure every run where it was kept."""
        settings = SETTINGS[request.scale]
        along = replace(settings, lpf_samples=min(settings.lpf_samples, CURVE_SAMPLES))
        found: dict[str, dict[int, list[FlatnessResult]]] = {}
        curves: dict[str, dict[int, list[LowPass]]] = {}
        entries: list[dict[str, Any]] = []
        remarks = [OVER_SEEDS] if len(request.seeds) > 1 else []
        for cell in cells:
            for run in cell.runs:
                request.tell(f"measuring {run.path.name}")
                epochs = _half_way_and_end(cell, sorted(kept(run)))
                try:
                    measured = {epoch: measure_run(run, epoch=epoch, settings=settings) for epoch in epochs}
                    filtered = low_pass_curve(run, settings=along)
                except ValueError as error:  # a run that diverged has no curvature, the others have
                    remarks.append(f"{run.path.name} was left out: {error}")
                    continue
                for epoch, result in measured.items():
                    found.setdefault(cell.row, {}).setdefault(epoch, []).append(result)
                for epoch, point in filtered.items():
                    curves.setdefault(cell.row, {}).setdefault(epoch, []).append(point)
            if cell.row in found:
                entries.append(_entry(cell, found[cell.row], curves[cell.row]))
        if not found:
            raise ValueError("none of the runs could be measured: " + " ".join(remarks))
        spectra = {row: {epoch: [_spectrum(r) for r in of] for epoch, of in by.items()} for row, by in found.items()}
        traces = {row: {epoch: [_trace(r) for r in of] for epoch, of in by.items()} for row, by in found.items()}
        return Report(
            tables={"Top eigenvalue, trace and low-pass filter": _table(found)},
            rows=entries,
            figures={"spectrum": figures.spectrum(spectra, traces), "low-pass": figures.low_pass(curves)},
            notes=[
                f"Cross-entropy on {settings.samples} training images without augmentation, BatchNorm in "
                f"{settings.mode} mode; low-pass filter with noise of standard deviation {settings.lpf_sigma}. "
                "The paper shows figures without numbers, so there is nothing to put beside these.",
                *remarks,
            ],
        )


class LossLandscape(_Trained):
    """The loss in a plane of random, filter-normalised directions, the same draws for every network."""

    def report(self, request: Request, cells: Sequence[Cell]) -> Report:
        """Evaluate the plane around the first run of each cell."""
        settings = LANDSCAPES[request.scale]
        found: dict[str, Landscape] = {}
        entries: list[dict[str, Any]] = []
        for cell in cells:
            run = cell.runs[0]
            request.tell(f"measuring {run.path.name}")
            plane = found[cell.row] = measure_landscape(run, settings=settings)
            inner = plane.loss[plane.loss.isfinite()]
            if not len(inner):
                raise ValueError(f"{run.path.name} has no finite loss around its weights: it diverged")
            entry = {"centre": float(plane.loss[settings.points // 2, settings.points // 2])}
            entry |= {"mean": float(inner.mean()), "largest": float(inner.max())}
            entries.append({"row": cell.row, "seed": cell.configs[0].seed, "values": entry, "runs": [run.path.name]})
        highest = min(HIGHEST, max(entry["values"]["largest"] for entry in entries))
        head = ["", "loss at the centre", "mean over the plane", "largest"]
        body = [[str(entry["row"]), *(f"{value:.4g}" for value in entry["values"].values())] for entry in entries]
        return Report(
            tables={"Loss around the trained weights": [head, *body]},
            rows=entries,
            figures={
                "contour": figures.landscapes(found, highest=highest),
                "surface": figures.landscapes(found, "surface", highest=highest),
            },
            notes=[
                f"{settings.points} x {settings.points} cells, {settings.samples} training images, first seed; "
                f"figures are cut at a loss of {highest:.3g}."
            ],
        )


FLATNESS = Flatness(name="flatness", title="Hessian spectrum, trace and low-pass filter of SGD, SAM and LE-SAM")
LANDSCAPE = LossLandscape(name="landscape", title="Loss landscapes of SGD, SAM and LE-SAM")


def _half_way_and_end(cell: Cell, epochs: Sequence[int]) -> list[int]:
    """The kept epochs nearest to the middle and the end (100 and 200 at the paper's scale)."""
    half = cell.configs[0].schedule.epochs / 2
    return sorted({min(epochs, key=lambda epoch: abs(epoch - half)), epochs[-1]})


def _table(found: Mapping[str, Mapping[int, Sequence[FlatnessResult]]]) -> list[list[str]]:
    table = [["", "epoch", "top eigenvalue", "trace", "low-pass filter", "added by the noise"]]
    for row, epochs in found.items():
        for epoch, results in sorted(epochs.items()):
            numbers = zip(*(_numbers(result).values() for result in results), strict=True)
            table.append([row, str(epoch), *(Spread.of(list(values)).short() for values in numbers)])
    return table


def _numbers(result: FlatnessResult) -> dict[str, float]:
    filtered = result.low_pass
    if filtered is None:
        raise ValueError("the low-pass filter was left out")
    return {
        "top_eigenvalue": float(_spectrum(result).values[0]),
        "trace": _trace(result).estimate,
        "low_pass": filtered.estimate,
        "added_by_noise": filtered.excess,
    }


def _entry(
    cell: Cell, found: Mapping[int, Sequence[FlatnessResult]], curves: Mapping[int, Sequence[LowPass]]
) -> dict[str, Any]:
    return {
        "row": cell.row,
        "seeds": [config.seed for config in cell.configs],
        "epochs": {epoch: [_numbers(result) for result in results] for epoch, results in found.items()},
        "low_pass": {epoch: [result.estimate for result in results] for epoch, results in curves.items()},
        "eigenvalues": {epoch: [_spectrum(r).values.tolist() for r in results] for epoch, results in found.items()},
        "runs": [run.path.name for run in cell.runs],
    }


def _spectrum(result: FlatnessResult) -> Any:
    return result.eigenvalues


def _trace(result: FlatnessResult) -> Any:
    return result.trace
