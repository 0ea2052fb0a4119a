"""``lesam plot``: run folders as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from lesam.lab.commands.options import FigureSize, RunPaths, file_to_write, found_runs

Kind = Literal["curves", "flatness", "radius", "sensitivity", "switch"]


def plot(
    kind: Annotated[Kind, Parameter(help="What to draw.")],
    runs: RunPaths = [Path("runs")],  # noqa: B006 -- cyclopts reads the default, nobody changes it
    *,
    output: Annotated[
        Path | None, Parameter(name=["--output", "-o"], help="File to write; its ending is the format.")
    ] = None,
    size: FigureSize = "screen",
) -> None:
    """Draw runs: accuracy and loss, the radius, tracked flatness, sensitivity to the budget, a late switch."""
    from lesam.lab.report import paper_size, plots
    from lesam.lab.runs.repetitions import group

    path = file_to_write(output or Path(f"{kind}.png"))
    groups = group(found_runs(runs))
    figure = plots.caption(plots.KINDS[kind](groups), groups)
    paper_size.fit(figure, size)
    print(plots.save(figure, path))
