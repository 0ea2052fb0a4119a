"""What a method is called and how it looks, in every table and figure: one colour and one dash for each method.

Needs no plotting library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lesam.lab.config.optimizer import methods, title
from lesam.lab.runs.repetitions import Group

PERCENT = ("accuracy", "capped", "overrun")
"""How columns of the metrics end that are shares, drawn as percentages."""

DASHES = ("-", "--", ":", "-.")

FIXED = {"sgd": "#7f7f7f", "sam": "#0072b2", "lesam": "#d55e00", "lesamplus": "#cc79a7"}
"""Colours of the methods that most figures show: of Okabe and Ito's palette for colour-blind readers."""

CYCLE = (
    *("#e69f00", "#009e73", "#56b4e9", "#332288", "#117733", "#882255", "#999933", "#44aa99", "#aa4499", "#cc6677"),
    *("#6699cc", "#661100", "#ddaa33", "#bb5566", "#004488", "#77aadd", "#ee8866", "#bbcc33", "#44bb99", "#aaaa00"),
)
"""Those of the others, by their place in the list of methods: the rest of that palette, then those of Paul Tol."""

OWN_DASH = {"sgd": ":", "sam": "--", "lesam": "-", "lesamplus": "-."}
"""Dashes of the same methods, so that they differ without any colour; the others take them in turn."""


MOMENTS = ("#000000", "#b8860b")
"""An early and a late moment of one run, in colours of no method."""


def colour(method: str) -> str:
    """The colour of a method.

    >>> colour("lesam"), colour("adam")
    ('#d55e00', '#e69f00')
    """
    return FIXED.get(method) or CYCLE[_place(method) % len(CYCLE)]


def dash(method: str) -> str:
    """The dash of a method.

    >>> dash("lesam"), dash("sam")
    ('-', '--')
    """
    return OWN_DASH.get(method) or DASHES[_place(method) % len(DASHES)]


def _place(method: str) -> int:
    """Of a method among those without a look of their own."""
    return [name for name in methods() if name not in FIXED].index(method)


@dataclass(frozen=True, slots=True)
class Look:
    """Name, colour and dash of a line."""

    name: str
    colour: str
    dash: str = DASHES[0]


def look(method: str) -> Look:
    """A method on its own.

    >>> look("lesam")
    Look(name='LE-SAM', colour='#d55e00', dash='-')
    """
    return Look(title(method), colour(method), dash(method))


def looks_of(groups: Iterable[Group]) -> dict[str, Look]:
    """Name, colour and dash of each group by its title, for the page and for every figure."""
    return chosen({group.title: group.config.method for group in groups})


def chosen(methods: Mapping[str, str]) -> dict[str, Look]:
    """A look for each line, from its name to its method: the method's, with another dash for further lines of it.

    >>> chosen({"SAM, rho 0.1": "sam", "SAM, rho 0.2": "sam"})["SAM, rho 0.2"]
    Look(name='SAM, rho 0.2', colour='#0072b2', dash='-')
    """
    taken = {colour(method) for method in methods.values()}
    spare = [each for each in reversed(CYCLE) if each not in taken]
    looks: dict[str, Look] = {}
    used: set[tuple[str, str]] = set()
    for name, method in methods.items():
        own = (colour(method), dash(method))
        # Where a method has more lines than there are dashes, the rest are in colours of nobody's.
        pairs = ((each, line) for each in (own[0], *spare) for line in DASHES)
        look = own if own not in used else next((pair for pair in pairs if pair not in used), own)
        used.add(look)
        looks[name] = Look(name, *look)
    return looks
