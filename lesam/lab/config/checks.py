"""What no run can mean: values that would train nonsense, or fail hours later, refused before anything is written.

They are looked at when a run is about to start and not when its record is made: folders of earlier versions with such
values stay readable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lesam.lab.config.optimizer import OptimizerConfig, budget_name
from lesam.lab.config.run import RunConfig, ScheduleConfig, moment
from lesam.lab.config.text import to_plain
from lesam.lab.config.weights import CONTENT

UNBOUNDED = ("record.checkpoint_minutes", "optimizer.rho_max")
"""Fields in which infinity has a meaning: never, and no cap."""


def check(config: RunConfig) -> None:
    """Refuse a run with a value that cannot be meant; the sentence names the field, its value and the remedy.

    >>> from lesam.lab import recipes
    >>> from lesam.lab.config.text import override
    >>> check(override(recipes.build("digits", scale="smoke"), ["optimizer.lr=0"]))
    Traceback (most recent call last):
    ValueError: optimizer.lr must be above 0, got 0.0: nothing would be trained
    """
    _check_finite(to_plain(config))
    _check_optimizer(config.optimizer)
    schedule = config.schedule
    if not schedule.lr_gamma > 0:
        raise ValueError(
            f"schedule.lr_gamma must be above 0, got {schedule.lr_gamma}: the rate is multiplied by it at a milestone"
        )
    if schedule.lr_milestones and schedule.lr != "multistep":
        raise ValueError(
            f"schedule.lr_milestones={_listed(schedule.lr_milestones)} has no effect with schedule.lr={schedule.lr}; "
            "set schedule.lr=multistep, or leave the milestones out"
        )
    # How many epochs there are where steps set the length depends on the number of images.
    check_times(schedule, epochs=None if schedule.steps is not None else schedule.epochs, steps=schedule.steps)
    for time in config.record.keep_epochs:
        if isinstance(time, int) and not 1 <= time <= schedule.epochs:
            raise ValueError(
                f"record.keep_epochs must lie in 1..{schedule.epochs} (the epochs) or be fractions, got {time}"
            )
    for name in ("wandb", "mlflow", "trackio"):
        project = getattr(config.record, name)
        if project is not None and not project.strip():
            raise ValueError(f"record.{name} names a project, got an empty name; none logs nothing there")
    weights = config.model.options.get("weights")
    if isinstance(weights, str) and Path(weights).name != weights and not weights.startswith(CONTENT):
        # One that is there is known by its content, and torchvision's have names.
        raise ValueError(f"model.options.weights={weights!r}: there is no such file")
    if config.system.nodes < 1:
        raise ValueError(f"system.nodes must be at least 1, got {config.system.nodes}")
    if config.system.accelerator not in ACCELERATORS:
        raise ValueError(
            f"system.accelerator must be one of {', '.join(ACCELERATORS)}, got {config.system.accelerator}"
        )
    lr = getattr(config.task, "warm_start_lr", 1.0)
    if not lr > 0:
        raise ValueError(f"task.warm_start_lr must be above 0, got {lr}")


ACCELERATORS = ("auto", "cpu", "cuda", "mps")


def check_times(schedule: ScheduleConfig, *, epochs: int | None, steps: int | None) -> None:
    """Refuse times of a schedule that lie beyond its end; None is a length that is not known yet."""
    for name, per in (("lr_warmup", "lr_per"), ("budget_warmup", "budget_per"), ("budget_anneal_start", "budget_per")):
        _check_time(schedule, name, getattr(schedule, name), per, epochs, steps)
    for milestone in schedule.lr_milestones:
        if milestone <= 0:
            raise ValueError(f"schedule.lr_milestones must be above 0, got {milestone}")
        _check_time(schedule, "lr_milestones", milestone, "lr_per", epochs, steps)


def _check_time(
    schedule: ScheduleConfig, name: str, time: float | None, per: str, epochs: int | None, steps: int | None
) -> None:
    unit = getattr(schedule, per)
    length = epochs if unit == "epoch" else steps
    if time is not None and length is not None and moment(time, length) > length:
        raise ValueError(
            f"schedule.{name}={time} lies beyond the end of the run, which has {length} {unit}s (schedule.{per}); "
            "give a smaller number, or a fraction such as 0.5, which follows the length"
        )


def _check_optimizer(optimizer: OptimizerConfig) -> None:
    if not optimizer.lr > 0:
        raise ValueError(f"optimizer.lr must be above 0, got {optimizer.lr}: nothing would be trained")
    budget = budget_name(optimizer)
    if budget is not None and not getattr(optimizer, budget) >= 0:
        raise ValueError(f"optimizer.{budget} must be a number >= 0, got {getattr(optimizer, budget)}")
    for name in ("momentum", "beta2"):
        if not 0.0 <= getattr(optimizer, name) < 1.0:
            raise ValueError(f"optimizer.{name} must lie in [0, 1), got {getattr(optimizer, name)}")
    if optimizer.weight_decay < 0:
        raise ValueError(f"optimizer.weight_decay must not be negative, got {optimizer.weight_decay}; 0 is none")
    if optimizer.max_norm is not None and optimizer.max_norm <= 0:
        raise ValueError(f"optimizer.max_norm must be above 0, got {optimizer.max_norm}; none does not clip")
    if optimizer.nesterov and optimizer.base != "sgd":
        raise ValueError(
            f"optimizer.nesterov=true belongs to optimizer.base=sgd and has no effect on {optimizer.base}; leave it out"
        )
    if optimizer.nesterov and optimizer.momentum == 0:
        raise ValueError("optimizer.nesterov=true needs optimizer.momentum above 0, got 0.0")


def _check_finite(values: Mapping[str, Any], prefix: str = "") -> None:
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            _check_finite(value, f"{path}.")
            continue
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, float) and (math.isnan(number) or (math.isinf(number) and path not in UNBOUNDED)):
                raise ValueError(f"{path} must be a finite number, got {number}")


def _listed(values: tuple[int | float, ...]) -> str:
    return ",".join(map(str, values))
