"""The numbers of the summary: what one run says of itself, and what flatness measured in its folder says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lesam.lab.report.page.entries import Entry, Member, number, spread
from lesam.lab.runs.statistics import Spread


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """A column of the summary."""

    name: str
    title: str
    of: Callable[[Member], float | None]
    percent: bool = False

    def over(self, entry: Entry) -> Spread | None:
        """Mean and spread over the runs that ended."""
        return spread(self.of(member) for member in entry.ended)


def test_accuracy(member: Member) -> float | None:
    """Of the last epoch."""
    return number(member.last.get("test_accuracy"))


def gap(member: Member) -> float | None:
    """Training accuracy, as it was seen in the last epoch, minus test accuracy."""
    train, test = number(member.last.get("train_accuracy")), test_accuracy(member)
    return None if train is None or test is None else train - test


def passes_a_step(member: Member) -> float | None:
    """Forward-backward passes, over all of training."""
    return _a_step(member, "passes")


def seconds_a_step(member: Member) -> float | None:
    """Seconds of training alone, over all of it."""
    return _a_step(member, "seconds") or None


def total_passes(member: Member) -> float | None:
    """Forward-backward passes of the whole run."""
    return member.axes["passes"][-1] if member.rows else None


def total_seconds(member: Member) -> float | None:
    """Seconds of training of the whole run."""
    return (member.axes["seconds"][-1] or None) if member.rows else None


def capped(member: Member) -> float | None:
    """Share of steps at the cap, where the loss budget has no say."""
    found = spread(member.series("capped").values())
    return None if found is None else found.mean


def rise_over_budget(member: Member) -> float | None:
    """The measured rise of the loss over the budget for it, both summed over the epochs that have a budget."""
    rise, budget = member.series("sharpness"), member.series("sigma")
    both = [index for index in budget if index in rise and budget[index] > 0]
    return sum(rise[index] for index in both) / sum(budget[index] for index in both) if both else None


QUANTITIES: tuple[Quantity, ...] = (
    Quantity(name="test_accuracy", title="test accuracy (%)", of=test_accuracy, percent=True),
    Quantity(name="gap", title="generalisation gap (points)", of=gap, percent=True),
    Quantity(name="passes", title="passes a step", of=passes_a_step),
    Quantity(name="seconds", title="seconds a step", of=seconds_a_step),
    Quantity(name="capped", title="steps at the cap (%)", of=capped, percent=True),
    Quantity(name="rise", title="measured rise / budget", of=rise_over_budget),
)


def _a_step(member: Member, axis: str) -> float | None:
    steps = number(member.rows[-1].get("step")) if member.rows else None
    return member.axes[axis][-1] / steps if steps else None
