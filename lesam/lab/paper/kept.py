"""Checkpoints that an experiment reads: runs are asked to keep them, and a run that was there already may lack some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lesam.lab import recipes
from lesam.lab.config.run import RunConfig, moment
from lesam.lab.config.text import change
from lesam.lab.paper.experiment import Planned
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.repetitions import has_diverged


def keeping(planned: Sequence[Planned], others: Iterable[Planned]) -> list[Planned]:
    """The runs of one experiment, each with the checkpoints that other experiments read of it as well."""
    wanted: dict[str, tuple[int | float, ...]] = {}
    for other in others:
        key = other.config.fingerprint
        wanted[key] = (*wanted.get(key, ()), *other.config.record.keep_epochs)
    return [replace(run, config=_with_kept(run.config, wanted.get(run.config.fingerprint, ()))) for run in planned]


def _with_kept(config: RunConfig, more: Iterable[int | float]) -> RunConfig:
    kept = {_epoch(config, time): time for time in (*config.record.keep_epochs, *more)}
    return change(config, {"record.keep_epochs": tuple(kept[epoch] for epoch in sorted(kept))})


def lacking(config: RunConfig, run: RunFolder) -> list[int]:
    """Epochs that an experiment wants of a finished run beyond those that its recipe keeps, and that are not there."""
    if has_diverged(run.summary()):  # it ended before most of them
        return []
    built = recipes.build(config.recipe, method=config.method, scale=config.scale, seed=config.seed)
    usual = {_epoch(config, time) for time in built.record.keep_epochs}
    wanted = {_epoch(config, time) for time in config.record.keep_epochs} - usual
    return sorted(wanted - checkpoints.epoch_ends(run.checkpoints).keys())


def said(name: str, run: RunFolder, epochs: Sequence[int], command: str) -> str:
    """What is missing, and the command that trains the run anew with it."""
    return (
        f"{run.path.name} was trained without keeping all epochs that {name} reads (it lacks those after "
        f"{', '.join(map(str, epochs))}); with all of them: {command} --again"
    )


def _epoch(config: RunConfig, time: int | float) -> int:
    return moment(time, config.schedule.epochs)
