"""The price as a picture: accuracy over passes and over seconds, two panels a stage, all from its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from lesam.flatness.figures import shared_legend
from lesam.lab.paper.study.price import PRICE
from lesam.lab.paper.study.price_tables import Frontier
from lesam.lab.paper.study.records import Record
from lesam.lab.report import style
from lesam.lab.report.paper_size import HEIGHT, LINE, WIDTHS

MARKERS = ("o", "s", "^", "D")
"""Of the entries of one method, in order."""


def figures(records: Sequence[Record], scale: str = "small") -> dict[str, Figure]:
    """The frontier of every stage that has repetitions."""
    shown = [one for stage in PRICE.stages if (one := Frontier(stage, records, scale)).points]
    if not shown:
        return {}
    figure = Figure(figsize=(WIDTHS["page"], HEIGHT * len(shown) + 1), layout="constrained")
    panels = figure.subplots(len(shown), 2, squeeze=False, sharey="row")
    for (left, right), one in zip(panels, shown, strict=True):
        looks = _looks(one)
        for name, point in one.points.items():
            colour, marker = looks[name]
            for axis, price in ((left, point.passes), (right, point.seconds)):
                if price is None:
                    continue
                axis.errorbar(
                    price,
                    point.spread.mean,
                    yerr=point.spread.std,
                    fmt=marker,
                    color=colour,
                    capsize=2,
                    markersize=4,
                    label=name,
                )
        for axis, words in ((left, "passes a step"), (right, one.clock)):
            axis.set_xlabel(words)
            axis.grid(alpha=0.3)
        left.set_title(one.stage.recipe, fontsize="medium", loc="left")
        left.set_ylabel("test accuracy (%)")
    lines = shared_legend(figure)
    figure.set_figheight(HEIGHT * len(shown) + LINE * lines + 0.5)
    figure.suptitle(f"{scale} scale; means and standard deviations over seeds", fontsize="small")
    return {"price": figure}


def _looks(one: Frontier) -> Mapping[str, tuple[str, str]]:
    """Colour and marker of each entry: its method's colour, and a marker of its own among those of the method."""
    seen: dict[str, int] = {}
    found = {}
    for group in PRICE.groups(one.stage, one.scale):
        for entry in group.entries:
            number = seen[entry.method] = seen.get(entry.method, -1) + 1
            found[entry.name] = (style.colour(entry.method), MARKERS[number])
    return found
