"""``lesam landscape``: the loss around trained weights, on common axes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from lesam.lab.commands.options import FigureSize, RunPaths, found_runs, with_checkpoints

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lesam.flatness import Landscape
    from lesam.lab.report.style import Look


def landscape(
    runs: RunPaths,
    *,
    epoch: Annotated[int | None, Parameter(help="Finished epochs to look at; by default the last kept.")] = None,
    one_dimensional: Annotated[bool, Parameter(negative="", help="A line instead of a plane.")] = False,
    points: Annotated[
        int | None, Parameter(help="Cells along each direction; by default 51, and 21 below the paper's scale.")
    ] = None,
    span: Annotated[float, Parameter(help="How far the grid reaches, in lengths of the weights' own filters.")] = 1.0,
    samples: Annotated[
        int | None, Parameter(help="Training images to take the loss on; by default 10000, and 1000 below that scale.")
    ] = None,
    batch_size: Annotated[int, Parameter(help="Images of one pass.")] = 1000,
    seed: Annotated[int, Parameter(help="Of the directions, which all runs share.")] = 123,
    reestimate_batch_norm: Annotated[
        bool, Parameter(negative="", help="Estimate BatchNorm's statistics anew in each cell; doubles the time.")
    ] = False,
    highest: Annotated[
        float | None, Parameter(help="Draw losses up to here; by default the highest of the flattest run.")
    ] = None,
    jobs: Annotated[int, Parameter(help="Processes that evaluate cells.")] = 1,
    device: Annotated[str, Parameter(help="cpu, cuda or auto.")] = "auto",
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="Folder for the figures.")] = Path("figures"),
    size: FigureSize = "screen",
) -> None:
    """Draw the loss of RUNS along filter-normalised random directions, the same for all of them.

    Cells are kept in the run folders as they are evaluated; a command that was stopped or killed resumes from there.
    """
    from lesam.flatness import figures
    from lesam.lab import console
    from lesam.lab.flatness.estimate import estimate, scale_of
    from lesam.lab.flatness.landscape import LandscapeSettings, measure_landscape
    from lesam.lab.report import paper_size, plots
    from lesam.lab.report.style import chosen
    from lesam.lab.runs.repetitions import group

    groups = group(with_checkpoints(found_runs(runs), [epoch]))
    every = [run for cell in groups for run in cell.runs]
    full = scale_of(every) == "paper"
    points = (51 if full else 21) if points is None else points
    samples = (10000 if full else 1000) if samples is None else samples
    for name, value in (("points", points), ("samples", samples), ("batch-size", batch_size), ("jobs", jobs)):
        if value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    settings = LandscapeSettings(
        dimensions=1 if one_dimensional else 2,
        points=points,
        span=span,
        seed=seed,
        batch_norm="reestimated" if reestimate_batch_norm else "trained",
        samples=samples,
        batch_size=batch_size,
    )
    found: dict[str, Landscape] = {}
    labelled = [
        (cell, run, f"{cell.title}, seed {run.config().seed}" if len(cell.runs) > 1 else cell.title)
        for cell in groups
        for run in cell.runs
    ]
    looks = chosen({label: cell.config.method for cell, _, label in labelled})
    losses = points**settings.dimensions * (2 if reestimate_batch_norm else 1)  # a third of a gradient each
    print(
        estimate(every, lambda run: losses / 3 / jobs, samples, "--points 15 --samples 500, or --one-dimensional"),
        flush=True,
    )
    with console.measurements() as watch:
        for _, run, label in labelled:
            found[label] = measure_landscape(
                run,
                epoch=epoch,
                settings=settings,
                processes=jobs,
                progress=lambda name, label=label: watch(f"{label}, {name}"),  # type: ignore[misc]
                device=device,
            )
    for label, each in found.items():
        print(label, *each.lines(), sep="\n")
    beside = paper_size.PANELS.get(size, 4)
    for kind, figure in _figures(found, looks, highest, beside).items():
        paper_size.shrink(plots.caption(figure, groups), size)
        for path in figures.save(figure, output / f"landscape-{kind}"):
            print(path)


def _figures(
    found: dict[str, Landscape], looks: dict[str, Look], highest: float | None, beside: int
) -> dict[str, Figure]:
    """The landscapes, by kind of drawing."""
    from lesam.flatness import figures

    line = any(each.y is None for each in found.values())
    kinds: tuple[Literal["line", "contour", "surface"], ...] = ("line",) if line else ("contour", "surface")
    if highest is None:
        highest = min(float(each.loss[each.loss.isfinite()].max()) for each in found.values())
    colours = {label: look.colour for label, look in looks.items()}
    dashes = {label: look.dash for label, look in looks.items()}
    return {
        kind: figures.landscapes(found, kind, highest=highest, colours=colours, dashes=dashes, beside=beside)
        for kind in kinds
    }
