r"""What claims are about, as one number for each entry and seed, larger meaning more of what is claimed.

Accuracies are in percent. Measures of flatness are :math:`-100 \ln` of the measure, so that a difference of 10 means
about a tenth flatter. *At equal epoch* is after the last one. *At equal loss* is where an entry's training loss first
passed the level that every entry of the seed reaches: cross-entropy flattens as it vanishes, so a network that is
fitted further looks flatter for that alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from lesam.lab.config.optimizer import title
from lesam.lab.paper.study.groups import BOTH
from lesam.lab.paper.study.records import Record

Scores = Mapping[str, Mapping[int, float]]
"""A quantity by entry and seed."""

ACCURACY = "accuracy"
COMPARED = (*(title(method) for method in ("sgd", "adamw", "sam", "lesam")), f"{title('sam')}, {BOTH}")
"""Whose losses set the level of "equal loss": those that claims compare."""
FLATNESS: Mapping[str, str] = {
    "eigenvalue": "largest eigenvalue",
    "trace": "trace",
    "lpf_excess": "low-pass filtered loss",
}
"""Columns, and what they are called."""


FLATNESS_QUANTITIES = tuple(f"{column} {when}" for column in FLATNESS for when in ("at equal epoch", "at equal loss"))
"""All quantities of flatness."""


def quantities(records: Sequence[Record]) -> Mapping[str, Scores]:
    """Every quantity of the records of one stage."""
    found: dict[str, dict[str, dict[int, float]]] = {}

    def keep(quantity: str, one: Record, value: float) -> None:
        found.setdefault(quantity, {}).setdefault(one.entry, {})[one.seed] = value

    for one in records:
        if one.part == "repeat":
            keep(ACCURACY, one, one.score)
            _keep_dynamics(one, keep)
            for name, accuracy in one.attacked.items():
                keep(under_attack(name), one, 100 * accuracy)
    tracked = [one for one in records if one.part == "track" and not one.diverged and one.curve.get("epoch")]
    for one in tracked:
        rivals = [other for other in tracked if other.seed == one.seed and other.entry in COMPARED]
        level = _level(rivals)
        for column in FLATNESS:
            if (value := one.curve[column][-1]) is not None and value > 0:
                keep(f"{column} at equal epoch", one, _flat(value))
            if level and (value := _at_loss(one, column, level)) is not None:
                keep(f"{column} at equal loss", one, _flat(value))
    return found


def under_attack(name: str) -> str:
    """The quantity of an attack."""
    return f"accuracy under {name}"


def _keep_dynamics(one: Record, keep: Callable[[str, Record, float], None]) -> None:
    seen = one.dynamics
    for phase in ("early", "late"):
        if (share := seen.get(f"first_order_{phase}")) is not None:
            keep(f"first-order share, {phase}", one, 100 * share)
            keep(f"curvature share, {phase}", one, 100 * (1 - share))
    if {"radius_start", "radius_early", "radius_late"} <= seen.keys():
        keep("fall of the radius", one, 100 * math.log(seen["radius_start"] / seen["radius_early"]))
        keep("rise of the radius", one, 100 * math.log(seen["radius_late"] / seen["radius_early"]))


def _level(rivals: Sequence[Record]) -> float:
    """The training loss that all of them reach; 0 where there are none."""
    reached = [min(loss for loss in one.curve["train_loss"] if loss is not None) for one in rivals]
    return max(reached, default=0.0)


def _at_loss(one: Record, column: str, level: float) -> float | None:
    """A measure where the training loss first passes a level, between epochs linear in the logarithms of both."""
    points = [
        (math.log(loss), math.log(value))
        for loss, value in zip(one.curve["train_loss"], one.curve[column], strict=True)
        if loss is not None and value is not None and loss > 0 and value > 0
    ]
    goal = math.log(level)
    for (before, low), (after, high) in itertools.pairwise(points):
        if before > goal >= after:
            return math.exp(low + (high - low) * (before - goal) / (before - after))
    return None


def _flat(value: float) -> float:
    return -100 * math.log(value)
