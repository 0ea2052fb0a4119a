"""What happens when: number of steps, learning rate, budget and switch, each a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import lesam
from lesam.lab.config.run import ScheduleConfig, moment

Schedule = Callable[[int], float]
"""From a step to a value."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """A schedule laid out over the steps of one data set.

    >>> times = Timetable(ScheduleConfig(epochs=200), steps_per_epoch=391)
    >>> times.lr_factor(100 * 391)
    0.5
    """

    config: ScheduleConfig
    steps_per_epoch: int
    stop: int | None = None
    """Number of steps after which training ends, with the rates and budgets of the whole schedule until then."""
    head_start: int = 0
    """Steps that another optimizer takes before the run's own, which counts from 0 when it takes over."""

    def __post_init__(self) -> None:
        """Refuse a head start that is the whole run."""
        if self.head_start >= self.planned:
            raise ValueError(
                f"task.warm_start={self.head_start} leaves none of the {self.planned} steps for the whole network; "
                "give fewer, or a larger schedule.steps"
            )

    @property
    def planned(self) -> int:
        """Steps over which the schedule is laid out."""
        whole = self.config.epochs * self.steps_per_epoch
        return whole if self.config.steps is None else min(whole, self.config.steps)

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.planned if self.stop is None else min(self.planned, self.stop)

    @property
    def epochs(self) -> int:
        """Epochs of the whole run, the last one perhaps a part."""
        return math.ceil(self.steps / self.steps_per_epoch)

    def batches(self, epoch: int) -> int:
        """Steps of one epoch."""
        return min(self.steps_per_epoch, self.steps - epoch * self.steps_per_epoch)

    @property
    def switch_step(self) -> int | None:
        """First step of the method when it starts late."""
        return None if self.config.switch_at is None else self.config.switch_at * self.steps_per_epoch

    @property
    def when(self) -> Callable[[int], bool] | None:
        """The steps that are the method's and not plain ones of the base, as the run's optimizer counts them.

        None where all are.
        """
        if self.config.every > 1:
            return lesam.schedules.every(self.config.every)
        return (
            None if self.switch_step is None else lesam.schedules.from_step(max(self.switch_step - self.head_start, 0))
        )

    @property
    def planned_epochs(self) -> int:
        """Epochs over which the schedule is laid out."""
        return math.ceil(self.planned / self.steps_per_epoch)

    def lr_factor(self, step: int) -> float:
        r"""Learning rate as a share of its peak.

        With ``t`` in epochs or steps, ``T`` the total and ``w`` the warm-up: ``(t + 1) / w`` before ``w``, then
        ``(1 + cos(pi (t - w) / (T - w))) / 2`` (cosine) or ``gamma`` to the number of milestones passed.
        """
        config = self.config
        per_step = config.lr_per == "step"
        now, total = (step, self.planned) if per_step else (step // self.steps_per_epoch, self.planned_epochs)
        warmup = moment(config.lr_warmup, total)
        if now < warmup:
            return (now + 1) / warmup
        if config.lr == "cosine":
            return (1 + math.cos(math.pi * (now - warmup) / (total - warmup))) / 2
        if config.lr == "multistep":
            return config.lr_gamma ** sum(now >= moment(milestone, total) for milestone in config.lr_milestones)
        return 1.0

    def budget(self, peak: float) -> Schedule:
        """The budget over the optimizer's own steps: ``peak``, with the configured warm-up and annealing."""
        config = self.config
        per_step = config.budget_per == "step"
        length = self.planned if per_step else self.planned_epochs
        schedule: Schedule = lesam.schedules.constant(peak)
        if config.budget_anneal_start is not None:
            start = moment(config.budget_anneal_start, length)
            schedule = lesam.schedules.cosine_tail(peak, start=start, stop=length)
        if warmup := moment(config.budget_warmup, length):
            schedule = lesam.schedules.warmup(schedule, steps=warmup)
        if not per_step:
            schedule = lesam.schedules.per_epoch(schedule, self.steps_per_epoch)
        return self._over_own_steps(schedule)

    def line(self, start: float, end: float) -> Schedule:
        """A line from ``start`` to ``end`` over the whole run, by the optimizer's own steps."""
        return self._over_own_steps(lesam.schedules.warmup(end, steps=self.planned, start=start))

    def _over_own_steps(self, schedule: Schedule) -> Schedule:
        head_start = self.head_start
        return (lambda step: schedule(step + head_start)) if head_start else schedule
