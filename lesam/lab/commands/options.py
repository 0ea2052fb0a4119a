"""Options that several sub-commands share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from lesam.lab.console import Watch
    from lesam.lab.runs.folder import RunFolder
    from lesam.lab.runs.repetitions import Group

Overrides = Annotated[
    list[str],
    Parameter(name="--set", negative="", help="Change a field, as in --set optimizer.sigma=0.3; may be repeated."),
]
Seeds = Annotated[list[int], Parameter(consume_multiple=True, negative="", help="Seeds, one run for each.")]
Method = Annotated[str, Parameter(help="A method of `lesam list methods`.")]
Scale = Annotated[str, Parameter(help="smoke (seconds), small (two CPU cores; not every recipe has it) or paper.")]
Runs = Annotated[Path, Parameter(name=["--runs", "-o"], help="Folder in which run folders are made.")]
FigureSize = Annotated[
    Literal["screen", "column", "page"], Parameter(help="For a screen, or a column or the page of a paper.")
]
RunPaths = Annotated[list[Path], Parameter(negative="", help="Run folders, or folders with run folders in them.")]


def distinct(seeds: Sequence[int]) -> list[int]:
    """The seeds, each of them once; the same seed again would be the same run again, not another repetition.

    >>> distinct([3, 1])
    [3, 1]
    """
    if not seeds:
        raise ValueError("--seeds needs at least one seed, as in --seeds 0 1 2")
    once = list(dict.fromkeys(seeds))
    if len(once) < len(seeds):
        repeated = sorted({seed for seed in once if list(seeds).count(seed) > 1})
        print(f"counted once though given several times: seed {', '.join(map(str, repeated))}", file=sys.stderr)
    return once


def file_to_write(path: Path) -> Path:
    """The file that a command writes, its folder made; a folder in its place is refused before any work is done."""
    if path.is_dir():
        raise ValueError(f"--output {path} is a folder; name a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def with_checkpoints(runs: Sequence[RunFolder], epochs: Sequence[int | None]) -> list[RunFolder]:
    """Those of the runs that have a checkpoint after each number of epochs (None: any); the others are named.

    Asked before anything is measured: a mistake should not show after hours.
    """
    from lesam.lab.runs import checkpoint as checkpoints

    good, complaints = [], []
    for run in runs:
        try:
            for epoch in epochs:
                checkpoints.find(run.checkpoints, epoch)
        except ValueError as error:
            complaints.append(str(error))
        else:
            good.append(run)
    if not good:
        raise ValueError("\n".join(complaints))
    for complaint in complaints:
        print(f"left out: {complaint}", file=sys.stderr)
    return good


def trained_runs(paths: Sequence[Path], epoch: int | None) -> list[RunFolder]:
    """The runs whose network can be asked: after ``epoch``, or (None) at the end of training; the others are named."""
    found = found_runs(paths)
    ready = [run for run in found if epoch is not None or run.summary() is not None]
    if not ready:
        raise ValueError(
            f"none of the runs below {', '.join(map(str, paths))} is finished; name a checkpoint's --epoch"
        )
    for run in found:
        if run not in ready:
            print(f"{run.path} is not finished and left out", flush=True)
    return with_checkpoints(ready, [epoch])


def found_runs(paths: Sequence[Path]) -> list[RunFolder]:
    """The run folders among and below the paths that can be read; the others are named on standard error."""
    from lesam.lab.runs.folder import find_runs, readable

    good, complaints = readable(find_runs(paths))
    if not good:
        raise ValueError("\n".join(complaints))
    for complaint in complaints:
        print(f"left out: {complaint}", file=sys.stderr)
    return good


def of_run(watch: Watch, cell: Group, run: RunFolder) -> Watch:
    """Progress that says whose it is: the group and the seed."""
    return lambda name: watch(f"{cell.title}, seed {run.config().seed}, {name}")
