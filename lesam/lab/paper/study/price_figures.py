"""The price as a picture: accuracy over passes and over seconds, two panels a stage, all from its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lesam.flatness.figures import shared_legend
from lesam.lab.config.optimizer import title
from lesam.lab.paper.study.price import OURS, PRICE
from lesam.lab.paper.study.price_tables import CLOCK, Frontier
from lesam.lab.paper.study.records import Record
from lesam.lab.report import style
from lesam.lab.report.paper_size import HEIGHT, LINE, WIDTHS

MARKERS = ("o", "s", "^", "D")
"""Of the entries of one method, in order."""
STEP = 0.02
"""Passes between two entries that have the same number of them."""
WAYS = tuple(f"{title(method)}, " for method in OURS)
"""How the names begin of what each of ours gives alone, which is in the tables: the same points again, or nearly."""


def figures(records: Sequence[Record], scale: str = "small") -> dict[str, Figure]:
    """The frontier of every stage where something cheaper than two passes has run beside the base."""
    found = [Frontier(stage, records, scale) for stage in PRICE.stages]
    shown = [one for one in found if any(point.passes < 2 for name, point in one.points.items() if name != one.base)]
    if not shown:
        return {}
    figure = Figure(figsize=(WIDTHS["page"], HEIGHT * len(shown) + 1), layout="constrained")
    panels = figure.subplots(len(shown), 2, squeeze=False, sharey="row")
    looks = _looks(scale)
    for (left, right), one in zip(panels, shown, strict=True):
        points = {name: point for name, point in one.points.items() if not name.startswith(WAYS)}
        floor, aside = _floor(one), _aside({name: point.passes for name, point in points.items()})
        beside = {name: point.passes + aside[name] for name, point in points.items()}
        seconds = {name: point.seconds for name, point in points.items() if point.seconds is not None}
        for axis, prices in ((left, beside), (right, seconds)):
            _draw(axis, prices, one, floor, looks)
        for axis, words in ((left, "passes a step"), (right, CLOCK)):
            axis.set_xlabel(words)
            axis.grid(alpha=0.3)
        if all(point.seconds is None for point in one.points.values()):
            right.set_axis_off()
            right.annotate("not timed", (0.5, 0.5), xycoords="axes fraction", ha="center", fontsize="small")
        left.set_title(one.stage.recipe, fontsize="medium", loc="left")
        left.set_ylabel("test accuracy (%)")
        left.set_ylim(bottom=floor, top=min(left.get_ylim()[1], 100.0))  # bars of seeds that collapsed reach higher
    lines = shared_legend(figure)
    figure.set_figheight(HEIGHT * len(shown) + LINE * lines + 0.5)
    words = "means and standard deviations over seeds; entries of the same passes beside each other"
    figure.suptitle(f"{scale} scale; {words}", fontsize="small")
    return {"price": figure}


def _draw(
    axis: Axes, prices: Mapping[str, float], one: Frontier, floor: float | None, looks: Mapping[str, tuple[str, str]]
) -> None:
    """Entries at their prices; one far below the others is written at the floor, words towards the middle."""
    middle = (min(prices.values()) + max(prices.values())) / 2 if prices else 0.0
    written = 0
    for name, price in prices.items():
        (colour, marker), spread = looks[name], one.points[name].spread
        if floor is None or spread.mean >= floor:
            look: dict[str, Any] = {"fmt": marker, "color": colour, "capsize": 2, "markersize": 4, "label": name}
            axis.errorbar(price, spread.mean, yerr=spread.std, **look)
            continue
        axis.update_datalim([(price, floor)])  # words alone do not widen the axis
        axis.annotate(
            f"{name}: {spread.mean:.1f} \N{DOWNWARDS ARROW}",
            (price, floor),
            (0, 2 + 8 * written),
            textcoords="offset points",
            fontsize="x-small",
            ha="right" if price > middle else "left",
        )
        written += 1
    axis.autoscale_view()


def _aside(passes: Mapping[str, float]) -> dict[str, float]:
    """How far each entry is drawn beside its passes: those of the same number would hide each other."""
    found: dict[str, float] = {}
    for number in {round(one, 1) for one in passes.values()}:
        same = [name for name, one in passes.items() if round(one, 1) == number]
        found |= {name: STEP * (place - (len(same) - 1) / 2) for place, name in enumerate(same)}
    return found


def _floor(one: Frontier) -> float | None:
    """Where the panels of a stage end below, where an entry lies so far down that the others would be one line."""
    if one.gain is None:
        return None
    base = one.points[one.base].spread.mean
    floor = base - 2 * abs(one.gain.spread.mean)
    return floor if any(point.spread.mean < floor for point in one.points.values()) else None


def _looks(scale: str) -> Mapping[str, tuple[str, str]]:
    """Colour and marker of each entry on every stage: its method's colour, and a marker among those of the method."""
    found: dict[str, tuple[str, str]] = {}
    for stage in PRICE.stages:
        for entry in (one for group in PRICE.groups(stage, scale) for one in group.entries if one.name not in found):
            colour = style.colour(entry.method)
            found[entry.name] = (colour, MARKERS[sum(known == colour for known, _ in found.values())])
    return found
