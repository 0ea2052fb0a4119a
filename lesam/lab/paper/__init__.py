"""Every table and figure of the paper, from one command: train what is missing, evaluate, write it down.

An experiment (:mod:`lesam.lab.paper.experiment`) says which runs it needs and what to read from them. Runs lie in
one folder and are shared: what one experiment has trained, another finds finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lesam.lab.config.suggest import unknown
from lesam.lab.paper import results
from lesam.lab.paper.experiment import Experiment, Request
from lesam.lab.paper.experiments.adversarial import ADVERSARIAL
from lesam.lab.paper.experiments.cifar import CIFAR, IMAGENET, LESAM_PLUS, VIT
from lesam.lab.paper.experiments.cost import Cost
from lesam.lab.paper.experiments.flatness import FLATNESS, LANDSCAPE
from lesam.lab.paper.experiments.long_tail import LONG_TAIL, PACS, VLCS
from lesam.lab.paper.experiments.mechanism import Mechanism
from lesam.lab.paper.experiments.radius import LATE_SWITCH, RADIUS, SENSITIVITY, STABILISERS
from lesam.lab.paper.running import check_inputs, train_all

_ALL: Sequence[Experiment] = (
    CIFAR,
    IMAGENET,
    VIT,
    FLATNESS,
    LANDSCAPE,
    RADIUS,
    LATE_SWITCH,
    LESAM_PLUS,
    PACS,
    VLCS,
    ADVERSARIAL,
    SENSITIVITY,
    LONG_TAIL,
    Cost(),
    Mechanism(),
    STABILISERS,
)

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}
NAMES: tuple[str, ...] = tuple(EXPERIMENTS)


def find(name: str) -> Experiment:
    """The experiment of a name."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, NAMES)
    return EXPERIMENTS[name]


def reproduce(name: str, request: Request, output: Path, *, jobs: int = 1) -> Path | None:
    """Run an experiment to its end and write ``output/NAME``.

    What is missing (data, pretrained weights) is an error before anything is written, and a result is put in place
    whole or not at all.

    Args:
        name: One of :data:`NAMES`.
        request: Scale, seeds and where runs are kept.
        output: Where the folder of the result is made.
        jobs: Runs trained at a time, each in a process of its own; 1 trains in this one.

    Returns:
        The folder of the result; None in processes other than the first of a distributed run.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    experiment = find(name)
    planned = experiment.plan(request)
    if not planned and request.part and experiment.plan(replace(request, methods=(), recipes=())):
        raise ValueError(f"{name} has no runs with {request.part}; leave --methods and --recipes out for all of it")
    check_inputs(planned)
    cells = train_all(planned, request.runs, jobs=jobs, tell=request.tell)
    if torch.distributed.is_initialized() and torch.distributed.get_rank() != 0:
        return None
    return results.write(experiment, request, experiment.report(request, cells), output)
