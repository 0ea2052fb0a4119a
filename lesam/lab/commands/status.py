"""``lesam status``: where the runs of a folder stand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def status(
    folder: Annotated[Path, Parameter(help="A folder with run folders in it.")] = Path("runs"),
) -> None:
    """List the runs of FOLDER: which train, which ended how, progress, time left, last test accuracy."""
    from lesam.lab import console
    from lesam.lab.report.status import HEAD, counted, standing
    from lesam.lab.runs.folder import find_runs, readable

    good, complaints = readable(find_runs([folder]))
    found = [standing(run) for run in good]
    console.show([HEAD, *(each.row() for each in found)], title=counted(found))
    for complaint in complaints:
        print(f"left out: {complaint}", file=sys.stderr)
