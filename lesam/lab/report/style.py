"""What a method is called and how it looks, in every table and figure: one colour, one dash for each of its settings.

Needs no plotting library.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lesam.lab.config.optimizer import methods, title
from lesam.lab.runs.repetitions import Group

DASHES = ("-", "--", ":", "-.")

FIXED = {"sgd": "#7f7f7f", "sam": "#1f77b4", "lesam": "#d62728", "lesamplus": "#9467bd"}
"""Colours of the methods that most figures show."""

CYCLE = (
    *("#ff7f0e", "#2ca02c", "#8c564b", "#e377c2", "#bcbd22", "#17becf", "#aec7e8", "#ffbb78", "#98df8a", "#ff9896"),
    *("#c5b0d5", "#c49c94", "#f7b6d2", "#dbdb8d", "#9edae5", "#393b79", "#637939", "#8c6d31", "#843c39", "#c7c7c7"),
)
"""Those of the others, by their place in the list of methods: matplotlib's "tab20" without the fixed ones, and more."""


MOMENTS = ("#000000", "#b8860b")
"""An early and a late moment of one run, in colours of no method."""


def colour(method: str) -> str:
    """The colour of a method.

    >>> colour("lesam"), colour("adam")
    ('#d62728', '#ff7f0e')
    """
    if method in FIXED:
        return FIXED[method]
    others = [name for name in methods() if name not in FIXED]
    return CYCLE[others.index(method) % len(CYCLE)]


@dataclass(frozen=True, slots=True)
class Look:
    """Name, colour and dash of a line."""

    name: str
    colour: str
    dash: str = DASHES[0]


def look(method: str) -> Look:
    """A method on its own.

    >>> look("lesam")
    Look(name='LE-SAM', colour='#d62728', dash='-')
    """
    return Look(title(method), colour(method))


def looks_of(groups: Iterable[Group]) -> dict[str, Look]:
    """Name, colour and dash of each group by its title: the method's colour, and a dash for each of its settings."""
    groups = list(groups)
    taken = {colour(group.config.method) for group in groups}
    spare = [each for each in reversed(CYCLE) if each not in taken]
    chosen: dict[str, Look] = {}
    for group in groups:
        used = {(each.colour, each.dash) for each in chosen.values()}
        # Where a method has more settings than there are dashes, the rest are in colours of nobody's.
        pairs = ((each, dash) for each in (colour(group.config.method), *spare) for dash in DASHES)
        chosen[group.title] = Look(group.title, *next(pair for pair in pairs if pair not in used))
    return chosen


def colours_of(groups: Iterable[Group]) -> dict[str, str]:
    """A colour for the title of each group, for figures without dashes: another one where a method has several."""
    chosen: dict[str, str] = {}
    for group in groups:
        own = colour(group.config.method)
        spare = next(each for each in CYCLE if each not in chosen.values())
        chosen[group.title] = spare if own in chosen.values() else own
    return chosen
