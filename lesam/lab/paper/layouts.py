"""Finished runs of an experiment, whatever number of processes trained them: where it decides, their folders differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lesam.lab.config.run import RunConfig
from lesam.lab.runs.folder import RunFolder


def finished(config: RunConfig, runs: Path) -> dict[int, RunFolder]:
    """The finished folders of a run by the number of workers in its identity, 1 where that decides nothing."""
    found: dict[int, RunFolder] = {}
    for path in sorted(runs.glob(f"{config.recipe}-{config.scale}-{config.method}-seed{config.seed}-*/summary.json")):
        run = RunFolder(path.parent)
        try:
            theirs = run.config()
        except ValueError:  # a folder of another version, or a damaged one, is no run of this experiment
            continue
        alone = replace(theirs, system=replace(theirs.system, workers=1))
        if alone.fingerprint == config.fingerprint and run.path.name == theirs.folder_name:
            found[theirs.system.workers] = run
    return found


def by_number(workers: Sequence[int]) -> str:
    """How many runs were trained by how many processes.

    >>> by_number([2, 1, 2])
    '1 by 1 process, 2 by 2 processes'
    """
    return ", ".join(
        f"{workers.count(number)} by {number} {'process' if number == 1 else 'processes'}"
        for number in sorted(set(workers))
    )
