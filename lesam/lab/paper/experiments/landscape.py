"""Loss landscapes of what SGD, SAM and LE-SAM found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lesam.flatness import Landscape, figures
from lesam.lab.flatness.landscape import LandscapeSettings, measure_landscape
from lesam.lab.paper.accuracy import rows
from lesam.lab.paper.experiment import Cell, Planned, Report, Request, few_seeds
from lesam.lab.paper.grid import Grid
from lesam.lab.paper.stage import STAGE
from lesam.lab.recipes.recipe import MARK, not_given

SETTINGS: Mapping[str, LandscapeSettings] = {
    "smoke": LandscapeSettings(points=5, samples=32),
    "small": LandscapeSettings(points=21, samples=500, batch_size=500),
    "paper": LandscapeSettings(),
}

HIGHEST = 10.0
"""Losses above are cut in the figures of landscapes, whose corners would otherwise hide the middle."""


class LossLandscape:
    """The loss in a plane of random, filter-normalised directions, the same draws for every network."""

    name = "landscape"
    title = "Loss landscapes of SGD, SAM and LE-SAM"

    recipes = tuple(STAGE.values())
    searches = False
    seeds = staticmethod(few_seeds)

    def plan(self, request: Request) -> list[Planned]:
        """SGD, SAM and LE-SAM."""
        return Grid(name=self.name, title=self.title, rows=rows("sgd", "sam", "lesam"), columns=STAGE).plan(request)

    def report(self, request: Request, cells: Sequence[Cell], kept: Sequence[Mapping[str, Any]] = ()) -> Report:
        """Evaluate the plane around the first run of each cell."""
        settings = SETTINGS[request.scale]
        found: dict[str, Landscape] = {}
        entries: list[dict[str, Any]] = []
        for cell in cells:
            run = cell.runs[0]
            request.progress(f"measuring {run.path.name}")
            plane = found[f"{cell.row}, seed {cell.configs[0].seed}"] = measure_landscape(run, settings=settings)
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
            tables={f"Loss around the trained weights {MARK}": [head, *body]},
            rows=entries,
            figures={
                "contour": figures.landscapes(found, highest=highest),
                "surface": figures.landscapes(found, "surface", highest=highest),
            },
            notes=[
                f"{settings.points} x {settings.points} cells, {settings.samples} training images, first seed; "
                f"figures are cut at a loss of {highest:.3g}.",
                f"{MARK} {not_given('images, grid and span')}",
            ],
        )


EXPERIMENT = LossLandscape()
