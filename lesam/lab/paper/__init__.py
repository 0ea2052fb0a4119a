"""Every table and figure of the paper, from one command: train what is missing, evaluate, write it down.

An experiment (:mod:`lesam.lab.paper.experiment`) says which runs it needs and what to read from them. Runs lie in one
folder and are shared: what one experiment has trained, another finds finished. Each experiment is one module of
:mod:`lesam.lab.paper.experiments`, found by its name: ``late-switch`` is ``EXPERIMENT`` of ``late_switch.py``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lesam.lab.config.checks import check
from lesam.lab.config.suggest import unknown
from lesam.lab.execution.in_process import InProcess
from lesam.lab.execution.jobs import Executor, RunsFailedError
from lesam.lab.paper import experiments, results, scales
from lesam.lab.paper.experiment import Cell, Experiment, Planned, Request
from lesam.lab.paper.kept import keeping, lacking, said
from lesam.lab.paper.planning import command
from lesam.lab.paper.running import train_all
from lesam.lab.paper.tuned import TUNED, tuned
from lesam.lab.training.divergence import RunDivergedError, raise_if_diverged
from lesam.lab.training.inputs import check_inputs

NAMES: tuple[str, ...] = tuple(found.name.replace("_", "-") for found in pkgutil.iter_modules(experiments.__path__))


def find(name: str) -> Experiment:
    """The experiment of a name; ``NAME-tuned`` is a table with every row searched alike."""
    if name.endswith(TUNED) and name.removesuffix(TUNED) in NAMES:
        return tuned(find(name.removesuffix(TUNED)))
    if name not in NAMES:
        raise unknown("experiment", name, NAMES)
    module = importlib.import_module(f"{experiments.__name__}.{name.replace('-', '_')}")
    experiment: Experiment = module.EXPERIMENT
    return experiment


def plan(experiment: Experiment, request: Request) -> list[Planned]:
    """The runs of an experiment, with the checkpoints that the experiments of ``keep_for`` read of them.

    A recipe asked for by name that does not have the scale is refused, and so is an experiment without any that has.
    """
    scales.check(experiment, request)
    whole = replace(request, methods=(), recipes=())
    return keeping(experiment.plan(request), [run for name in request.keep_for for run in find(name).plan(whole)])


def train(name: str, request: Request, output: Path, executor: Executor) -> None:
    """Train the runs of an experiment, those that follow from others included, and write nothing about them.

    Raises:
        RunsFailedError: Some runs failed.
    """
    experiment, request, _ = _prepared(name, request, output)
    _, failures = _train(experiment, request, executor)
    if failures:
        words = f"{len(failures)} of the runs of {name} failed; the same command trains them again.\n"
        raise RunsFailedError(words + "\n".join(failures))


def reproduce(name: str, request: Request, output: Path, executor: Executor | None = None) -> Path | None:
    """Run an experiment to its end and write ``output/NAME/SCALE``; a part joins the result that is there.

    What is missing (data, pretrained weights) is an error before anything is written.

    Args:
        name: One of :data:`NAMES`. What it leaves out at the scale is said and noted in the result.
        request: Scale, seeds and where runs are kept.
        output: Where the folder of the result is made.
        executor: Who trains the runs; by default this process, one after another.

    Returns:
        The folder of the result; None in processes other than the first of a distributed run.

    Raises:
        RunsFailedError: Some runs failed; the result of the others is written.
        RunDivergedError: Some runs have no finite loss at their end; the result is written and marks them.
    """
    experiment, request, planned = _prepared(name, request, output)
    without = scales.left_out(experiment, request.scale)
    cells, failures = _train(experiment, request, executor or InProcess(runs=request.runs))
    if torch.distributed.is_initialized() and torch.distributed.get_rank() != 0:
        return None
    remarks = _lacking(name, request, plan(experiment, request), cells)
    for words in remarks:
        request.progress(words)
    notes = [*without, *remarks]
    anything = bool(cells) or not planned or any(run.recorded for run in planned)
    folder = results.write(experiment, request, cells, output, notes) if anything else None
    ended = {run.path: summary for cell in cells for run in cell.runs if (summary := run.summary()) is not None}
    lost = ""
    try:
        raise_if_diverged(list(ended.values()), f"{folder} marks them, `lesam train ... --again` trains one anew")
    except RunDivergedError as error:
        if not failures:
            raise
        lost = f"\n{error}"
    if failures:
        there = f"{folder} has the others" if folder else "nothing was written"
        raise RunsFailedError(
            f"{len(failures)} of the runs of {name} failed; {there}. The same command trains them again.\n"
            + "\n".join(failures)
            + lost
        )
    return folder


def _prepared(name: str, request: Request, output: Path) -> tuple[Experiment, Request, list[Planned]]:
    """The experiment, what is asked of it, and its first runs, after everything that can be refused was."""
    experiment = find(name)
    request = request.of(experiment)
    planned = plan(experiment, request)
    if not planned and request.part and experiment.plan(replace(request, methods=(), recipes=())):
        raise ValueError(f"{name} has no runs with {request.part}; leave --methods and --recipes out for all of it")
    for words in scales.left_out(experiment, request.scale):
        request.progress(words)
    results.check(experiment, request, output)
    coming = [run.config for run in planned if not run.recorded]
    for config in coming:
        check(config)
    check_inputs(coming)
    return experiment, request, planned


def _train(experiment: Experiment, request: Request, executor: Executor) -> tuple[list[Cell], list[str]]:
    """Train what is planned; a plan may grow with what is finished, so it is made again after each of its orders."""
    cells: list[Cell] = []
    failures: list[str] = []
    asked: set[tuple[str, str, str]] = set()
    while new := [run for run in plan(experiment, request) if not run.recorded and _key(run) not in asked]:
        first = min(run.order for run in new)
        coming = [run for run in new if run.order == first]
        asked |= {_key(run) for run in coming}
        finished, failed = train_all(coming, request.runs, executor)
        cells, failures = [*cells, *finished], [*failures, *failed]
    return cells, failures


def _key(run: Planned) -> tuple[str, str, str]:
    return run.row, run.column, run.config.fingerprint


def _lacking(name: str, request: Request, planned: Sequence[Planned], cells: Sequence[Cell]) -> list[str]:
    """A sentence about each run that was finished before without keeping what this experiment reads."""
    asked = {(run.row, run.column, run.config.seed): run.config for run in planned}
    found: dict[str, str] = {}
    for cell in cells:
        for config, run in zip(cell.configs, cell.runs, strict=True):
            wanted = asked[cell.row, cell.column, config.seed]
            if epochs := lacking(wanted, run):
                found[run.path.name] = said(name, run, epochs, command(wanted, request.runs))
    return list(found.values())
