"""``lesam report``: run folders as one page for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from lesam.lab.commands.options import RunPaths, file_to_write


def report(
    runs: RunPaths = [Path("runs")],  # noqa: B006 -- cyclopts reads the default, nobody changes it
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="File to write.")] = Path("report.html"),
) -> None:
    """Write one page about RUNS that opens in any browser without a network: words, tables, figures, landscapes.

    It shows what the run folders hold; what was not measured is named with the command that would measure it.
    """
    from lesam.lab.files import write_atomically
    from lesam.lab.report.page.content import content
    from lesam.lab.report.page.html import page
    from lesam.lab.runs.folder import find_runs
    from lesam.lab.sweeps.history import beside

    file_to_write(output)
    found = find_runs(runs)
    made = content(found, sources=runs, links_from=output.parent, searches=beside(run.path for run in found))
    if not made["groups"]:
        raise ValueError("\n".join(made["problems"]))
    write_atomically(output, page(made))
    print(*made["headline"], output, sep="\n")
