"""Options that several sub-commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

Overrides = Annotated[
    list[str],
    Parameter(name="--set", negative="", help="Change a field, as in --set optimizer.sigma=0.3; may be repeated."),
]
Seeds = Annotated[list[int], Parameter(consume_multiple=True, negative="", help="Seeds, one run for each.")]
Method = Annotated[str, Parameter(help="A method of `lesam list methods`.")]
Scale = Annotated[str, Parameter(help="smoke (seconds), small (two CPU cores) or paper.")]
Runs = Annotated[Path, Parameter(name=["--runs", "-o"], help="Folder in which run folders are made.")]
RunPaths = Annotated[list[Path], Parameter(negative="", help="Run folders, or folders with run folders in them.")]
