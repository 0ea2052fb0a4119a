"""``lesam show``: one run, in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def show(run: Annotated[Path, Parameter(help="A run folder.")]) -> None:
    """Show one RUN: how it ended, its numbers, what was measured of it, its epochs, its settings, what it ran on."""
    from lesam.lab import console
    from lesam.lab.report import one_run
    from lesam.lab.runs.folder import find_runs, readable

    found = find_runs([run])
    if len(found) > 1:
        names = "\n".join(str(each.path) for each in found)
        raise ValueError(f"{run} holds {len(found)} runs, name one of them (`lesam table` shows all):\n{names}")
    good, complaints = readable(found)
    if not good:
        raise ValueError("\n".join(complaints))
    for title, rows in one_run.tables(good[0]).items():
        console.show(rows, title=title)
        print()
