"""``lesam table``: run folders as a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from lesam.lab.commands.options import RunPaths, file_to_write, found_runs


def table(
    runs: RunPaths = [Path("runs")],  # noqa: B006 -- cyclopts reads the default, nobody changes it
    *,
    format: Literal["markdown", "latex", "csv"] = "markdown",
    output: Annotated[Path | None, Parameter(name=["--output", "-o"], help="Write to this file.")] = None,
) -> None:
    """Tabulate finished runs: n, mean, standard deviation, and the paper's figure where the setting is the paper's.

    Runs that are not finished, and folders of the same run, are named below the table (CSV: on standard error).
    """
    from lesam.lab.report import tables
    from lesam.lab.runs.repetitions import group, remarks

    groups = group(found_runs(runs))
    lines = tables.lines(groups)
    if not lines:
        raise ValueError(f"none of the runs below {', '.join(map(str, runs))} is finished")
    said = remarks(groups)
    text = tables.FORMATS[format](lines, said)
    if format == "csv":
        for words in said:
            print(words, file=sys.stderr)
    if output is None:
        print(text, end="")
    else:
        file_to_write(output).write_text(text)
        print(output)
