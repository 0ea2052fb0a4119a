"""LE-SAM over its budget: without a warm-up, with warm-ups of several lengths, and with caps instead of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lesam.lab.paper.study.entries import Ranges
from lesam.lab.paper.study.groups import CAPS, WARMUPS, capped_entry, scheduled, warmed_entry
from lesam.lab.paper.study.records import Record
from lesam.lab.runs.statistics import Spread
from lesam.lab.sweeps.tuning import Entry


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Mean validation accuracy over the seeds of the search, by budget."""

    name: str
    kind: Literal["neither", "warm-up", "cap"]
    budgets: tuple[float, ...]
    accuracies: tuple[float, ...]


def budget_lines(stage: Ranges, records: Sequence[Record]) -> list[Line]:
    """The lines whose trials are finished."""
    if "lesam" not in stage.first:
        return []
    own = [one for one in records if one.recipe == stage.recipe and one.part == "search"]
    wanted: list[tuple[str, Literal["neither", "warm-up", "cap"], Entry]] = [
        ("neither", "neither", scheduled(stage, "lesam", "annealed")),
        *((f"over {share:.0%} of training", "warm-up", warmed_entry(stage, share)) for share in WARMUPS),
        *((f"at {share:g} of the first radius", "cap", capped_entry(stage, share)) for share in CAPS),
    ]
    found = []
    for name, kind, entry in wanted:
        trials = [
            [one.score for one in own if (one.entry, one.setting) == (entry.name, setting)]
            for setting in entry.settings
        ]
        if all(trials):
            budgets = tuple(float(setting[0].split("=")[1]) for setting in entry.settings)
            means = tuple(Spread.of(scores).mean for scores in trials)
            found.append(Line(name=name, kind=kind, budgets=budgets, accuracies=means))
    return found


def budget_table(lines: Sequence[Line]) -> list[tuple[str, ...]]:
    """Validation accuracies in percent, one row a line."""
    if not lines:
        return []
    head = ("", *(f"sigma {budget:g}" for budget in lines[0].budgets))
    words = {"neither": "", "warm-up": "warm-up ", "cap": "cap "}
    body = [(words[line.kind] + line.name, *(f"{value:.2f}" for value in line.accuracies)) for line in lines]
    return [head, *body]
