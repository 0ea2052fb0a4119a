"""How a method looks in every figure: one colour, and one dash for each of its settings. Needs no plotting library."""

from __future__ import annotations

from collections.abc import Iterable

from lesam.lab.config.optimizer import methods
from lesam.lab.runs.repetitions import Group

DASHES = ("-", "--", ":", "-.")

FIXED = {"sgd": "#7f7f7f", "sam": "#1f77b4", "lesam": "#d62728", "lesamplus": "#9467bd"}
"""Colours of the methods that most figures show."""

CYCLE = (
    *("#ff7f0e", "#2ca02c", "#8c564b", "#e377c2", "#bcbd22", "#17becf", "#aec7e8", "#ffbb78", "#98df8a", "#ff9896"),
    *("#c5b0d5", "#c49c94", "#f7b6d2", "#dbdb8d", "#9edae5", "#393b79", "#637939", "#8c6d31", "#843c39", "#c7c7c7"),
)
"""Those of the others, by their place in the list of methods: matplotlib's "tab20" without the fixed ones, and more."""


def colour(method: str) -> str:
    """The colour of a method.

    >>> colour("lesam"), colour("adam")
    ('#d62728', '#ff7f0e')
    """
    if method in FIXED:
        return FIXED[method]
    others = [name for name in methods() if name not in FIXED]
    return CYCLE[others.index(method) % len(CYCLE)]


def colours_of(groups: Iterable[Group]) -> dict[str, str]:
    """A colour for the title of each group: its method's, and another one where a method has several groups."""
    chosen: dict[str, str] = {}
    for group in groups:
        own = colour(group.config.method)
        chosen[group.title] = f"C{len(chosen)}" if own in chosen.values() else own
    return chosen
