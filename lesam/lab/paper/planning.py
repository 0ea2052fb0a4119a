"""What an experiment would cost: its runs as commands, with an estimate of the time and disk that each takes.

Time is measured where runs of the same recipe, scale, network and batch size are finished: on those of the same method,
or else on those of others by the passes a step. Otherwise the operations of the network are counted and divided by what
this machine reaches in a convolution: right to a factor of two or three. Every line says which it was.
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import lesam
from lesam.lab import models, recipes
from lesam.lab.config.optimizer import PLAIN, own_settings, title
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import paths, to_plain
from lesam.lab.data.sampling import chosen_classes
from lesam.lab.device import measuring_device
from lesam.lab.paper.experiment import Experiment, Planned, Request
from lesam.lab.paper.kept import lacking, said
from lesam.lab.paper.layouts import by_number, finished
from lesam.lab.paper.scales import left_out
from lesam.lab.runs.folder import RunFolder
from lesam.lab.training.fabric import processes
from lesam.lab.training.layout import laid_out

# Training images, classes and side of an image (of a signal: its length) where the configuration does not say. A domain
# trains for a number of steps, so its size does not matter.
_DATA: Mapping[str, tuple[int, int, int]] = {
    "cifar10": (50_000, 10, 32),
    "cifar100": (50_000, 100, 32),
    "imagefolder": (1_281_167, 1000, 224),
    "pacs": (2_000, 7, 224),
    "vlcs": (2_000, 5, 224),
    "synthetic": (512, 10, 32),
    "synthetic_domains": (60, 4, 16),
    "digits": (1_200, 10, 16),
    "mnist1d": (5_000, 10, 40),
}


COUNTED = "counted"
"""Basis of a time that follows from operations and passes a step, not from runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Seconds of training and bytes of checkpoints that stay."""

    seconds: float
    size: float
    basis: str
    """Where the seconds come from."""


def numbered(planned: Sequence[Planned]) -> list[RunConfig]:
    """The different runs of a plan that have no record; their places are the numbers of ``--task``."""
    return list({run.config.folder_name: run.config for run in planned if not run.recorded}.values())


def lines(
    experiment: Experiment, request: Request, output: Path, planned: Sequence[Planned], device_factor: float = 1.0
) -> Iterator[str]:
    """One command a line for each run that is to be trained; what is no command is a comment of the shell.

    The device that is to train them is ``device_factor`` times as fast as this machine.
    """
    if not device_factor > 0:
        raise ValueError(f"--device-factor must be a number > 0, got {device_factor}")
    configs = numbered(planned)
    missing, elsewhere, unkept = [], [], []
    for config in configs:
        workers = laid_out(config, processes(config.system)).system.workers
        there = finished(config, request.runs)
        if not there:
            missing.append(config)
        elif workers not in there:
            elsewhere.append(max(there))
        elif epochs := lacking(config, there[workers]):
            unkept.append(said(experiment.name, there[workers], epochs, command(config, request.runs)))
    yield f"# {experiment.name} at scale {request.scale}: {len(configs)} runs, {len(missing)} of them to be trained"
    if recorded := sum(run.recorded for run in planned):
        yield f"# {recorded} further runs have a record in {request.records}"
    yield from (f"# {words}" for words in left_out(experiment, request.scale))
    if elsewhere:
        yield (
            f"# finished by another number of processes than asked for here: {by_number(elsewhere)}. Start the last "
            "command by as many (torchrun, or --set system.devices=N), or it trains those runs anew"
        )
    yield from (f"# {words}" for words in unkept)
    estimates = [estimate(config, request.runs) for config in missing]
    for config, one in zip(missing, estimates, strict=True):
        yield f"{command(config, request.runs)}  # about {_duration(one.seconds)} ({one.basis}), {_bytes(one.size)}"
    if missing:
        seconds, size = (math.fsum(getattr(one, name) for one in estimates) for name in ("seconds", "size"))
        parent = next(path for path in (request.runs.absolute(), *request.runs.absolute().parents) if path.exists())
        free = shutil.disk_usage(parent).free
        yield (
            f"# all: about {_duration(seconds)} one after another on this machine "
            f"({measuring_device(None, float64=False)}), {_bytes(size)} of disk; {_bytes(free)} are free"
        )
        if device_factor != 1:
            hours = seconds / device_factor / 3600
            yield f"# on devices {device_factor:g} times as fast as this machine: about {hours:.3g} device hours"
        counted = sum(one.basis == COUNTED for one in estimates)
        if counted:
            yield f"# {counted} of the times are counted, not measured: right to a factor of two or three"
    if experiment.searches and missing:
        yield "# further runs follow from what these choose"
    again = _again(experiment, request, output)
    if len(missing) > 1:
        yield (
            f"# as one array of SLURM: sbatch --array=0-{len(configs) - 1} --requeue --signal=USR1@90 --wrap "
            f"{shlex.quote(f'srun {again} --task $SLURM_ARRAY_TASK_ID')}, and then {again} --report-only"
        )
    yield f"{again}  # trains what is missing, evaluates, writes the result"


def command(config: RunConfig, runs: Path) -> str:
    """The command that trains a run: its recipe, and ``--set`` for every field that is not the recipe's."""
    built = recipes.build(config.recipe, method=config.method, scale=config.scale, seed=config.seed)
    theirs, ours = to_plain(built), to_plain(config)
    changed = [path for path in dict.fromkeys([*paths(built), *paths(config)]) if _at(ours, path) != _at(theirs, path)]
    words = ["lesam", "train", config.recipe, "--method", config.method, "--scale", config.scale]
    words += ["--seeds", str(config.seed), "--runs", str(runs)]
    for path in changed:
        if path == "model.weights_file":  # which the weights themselves name
            continue
        # Weights are known by their content, and found by their file.
        found = config.model.weights_file if path == "model.options.weights" else None
        words += ["--set", f"{path}={found or _text(_at(ours, path))}"]
    return shlex.join(words)


def estimate(config: RunConfig, runs: Path) -> Estimate:
    """What a run takes."""
    steps = _steps(config)
    options = {name: value for name, value in config.model.options.items() if name != "weights"}
    weights, operations = _network(config.model.name, json.dumps(options), *_input(config))
    measured = _measured(config, runs)
    if measured is None:  # a backward pass is twice a forward pass
        per_step, basis = _passes(config) * 3 * operations * config.data.batch_size / _speed(), COUNTED
    else:
        per_step, basis = measured
    twice = 2 if config.task.two_passes else 1  # a first pass chooses the length
    state = 2 if config.optimizer.base in ("adam", "adamw") or config.method in ("adam", "adamw") else 1
    kept = len(config.record.keep_epochs) + config.record.keep
    return Estimate(seconds=twice * steps * per_step, size=twice * 4 * weights * (1 + state) * kept, basis=basis)


def _steps(config: RunConfig) -> int:
    options = config.data.options
    whole, classes, _ = _DATA[config.data.name]
    if "only_classes" in options:
        whole = whole * _input(config)[0] // classes
    size = int(options.get("train_size") or options.get("samples") or whole)
    if "samples" in options:  # of which the validation signals are taken
        size = int(size * (1 - float(options.get("validation") or 0)))
    if config.data.options.get("imbalance"):
        size = int(size * _share(float(config.data.options["imbalance"] or 1), _input(config)[0]))
    steps = config.schedule.epochs * math.ceil(size / config.data.batch_size)
    check_every = getattr(config.task, "check_every", None)
    if check_every is not None:
        steps = config.schedule.epochs * check_every
    return steps if config.schedule.steps is None else min(steps, config.schedule.steps)


def _share(imbalance: float, classes: int) -> float:
    """The part of the images that a long tail leaves."""
    return math.fsum(imbalance ** (-number / (classes - 1)) for number in range(classes)) / classes


def _measured(config: RunConfig, runs: Path) -> tuple[float, str] | None:
    """Seconds of a step as finished runs of the same recipe and scale took, and which runs those were."""
    steps: dict[str, list[float]] = {}
    passes: dict[str, list[float]] = {}
    files = sorted(runs.glob(f"{config.recipe}-{config.scale}-*/summary.json"))
    for other, seconds in _timings(tuple((file, file.stat().st_mtime_ns) for file in files)):
        if other.data.batch_size == config.data.batch_size and other.model == config.model:
            passes.setdefault(other.method, []).append(seconds / _passes(other))
            if (other.schedule.switch_at, other.schedule.every) == (config.schedule.switch_at, config.schedule.every):
                steps.setdefault(other.method, []).append(seconds)
    if own := steps.get(config.method):
        return statistics.median(own), f"measured on {len(own)} of {title(config.method)}"
    if passes:
        per_pass = statistics.median(value for values in passes.values() for value in values)
        return per_pass * _passes(config), f"measured on {', '.join(map(title, passes))} by passes a step"
    return None


@lru_cache(maxsize=4)
def _timings(files: tuple[tuple[Path, int], ...]) -> list[tuple[RunConfig, float]]:
    """Finished runs and their seconds a step, read once for all runs of a plan; the times of the files are its key."""
    found = []
    for file, _ in files:
        run = RunFolder(file.parent)
        try:
            summary = run.summary() or {}
            found.append((run.config(), float(summary["seconds"]) / float(summary["last"]["step"])))
        except (ValueError, KeyError, TypeError, ZeroDivisionError):  # what cannot be read says nothing about time
            continue
    return found


def _passes(config: RunConfig) -> float:
    """Forward-backward passes of a step, on average over the run.

    What follows from the gradients cannot be known before: AE-SAM is taken to spend its second pass in half of the
    steps, as it does where gradients are as often above their mean as below, and ESAM to save nothing.
    """
    if config.method in PLAIN:
        return 1
    base = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    most, times = float(lesam.METHODS[config.method](base).passes), config.schedule
    share = 1 / times.every if times.switch_at is None else 1 - times.switch_at / times.epochs
    if config.method == "aesam":
        share /= 2
    own = own_settings(config.optimizer)
    if config.method == "looksam":
        share /= own["every"]
    share *= float(own.get("share", 1.0))  # of the batch, for the first pass
    return 1 + (most - 1) * share


def _input(config: RunConfig) -> tuple[int, tuple[int, int, int]]:
    """Classes, and the shape of what the network sees."""
    _, classes, side = _DATA[config.data.name]
    options, augment = config.data.options, config.data.augment_options
    side = int(options.get("image_size") or options.get("size") or side)
    side = int(augment.get("resize") or augment.get("size") or (224 if config.data.augment == "vit" else side))
    channels = 1 if config.data.name in ("digits", "mnist1d") else 3
    classes = 20 if options.get("labels") == "coarse" else int(options.get("classes") or classes)
    if (chosen := options.get("only_classes")) is not None:
        classes = len(chosen_classes(str(chosen), classes))
    return classes, (channels, 1 if config.data.name == "mnist1d" else side, side)


@cache
def _network(name: str, options: str, classes: int, shape: tuple[int, int, int]) -> tuple[int, float]:
    """Number of weights, and operations of a forward pass of one image, counted without computing anything."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
        model = models.build(name, classes, **json.loads(options)).eval()
        model(torch.zeros(1, *shape))
    return sum(weight.numel() for weight in model.parameters()), float(counter.get_total_flops())


@cache
def _speed() -> float:
    """Operations a second that this machine reaches in a convolution and its gradient."""
    device = measuring_device(None, float64=False)
    images = torch.randn(32, 64, 32, 32, device=device, requires_grad=True)
    kernel = torch.randn(64, 64, 3, 3, device=device, requires_grad=True)

    def once() -> None:
        loss = functional.conv2d(images, kernel, padding=1).sum()
        float(torch.autograd.grad(loss, [images, kernel])[1].sum())  # waits for the device

    once()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < 0.3:
        once()
        done += 1
    return done * 3 * 2 * 32 * 64 * 64 * 9 * 32 * 32 / (time.perf_counter() - began)


def _again(experiment: Experiment, request: Request, output: Path) -> str:
    words = ["lesam", "reproduce", experiment.name, "--scale", request.scale, "-o", str(output)]
    words += ["--runs", str(request.runs), "--seeds", *map(str, request.seeds)]
    for option, values in (("--methods", request.methods), ("--recipes", request.recipes)):
        words += [option, *values] if values else []
    words += ["--keep-for", *request.keep_for] if request.keep_for else []
    words += ["--records", str(request.records)] if request.records else []
    for text in request.changes:
        words += ["--set", text]
    return shlex.join(words)


def _at(values: Any, path: str) -> Any:
    for name in path.split("."):
        values = values.get(name)
    return values


def _text(value: Any) -> str:
    """A value as ``--set`` reads it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(_text, value)) if isinstance(value, list) else str(value)


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def _bytes(size: float) -> str:
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= length:
            return f"{size / length:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"
