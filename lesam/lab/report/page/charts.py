"""Figures of the page as plain records: what is drawn, in numbers; the page's script turns them into plots.

Everything is summarised here: a figure has at most three lines for each group (runs that finished, that diverged, that
are unfinished), whatever the number of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from lesam.lab.flatness.measures import MEASURES
from lesam.lab.report.page.comparison import priced
from lesam.lab.report.page.entries import AXES, Entry, Member, Status, plain
from lesam.lab.report.style import PERCENT
from lesam.lab.runs.statistics import Spread

Chart = dict[str, Any]

MOST_LINES = 30
"""Groups of one place that figures show: those with the highest test accuracy."""
MOST_POINTS = 200
"""Of one line; longer runs are drawn at evenly spaced epochs."""

ACCURACY_AND_LOSS = {
    "test_accuracy": "test accuracy (%)",
    "train_accuracy": "training accuracy (%)",
    "test_loss": "test loss",
    "train_loss": "training loss",
}
CLIMB = {
    "rho": "radius rho",
    "sigma": "loss budget sigma",
    "sharpness": "measured rise of the loss",
    "capped": "steps at the cap (%)",
    "overrun": "steps whose rise is twice what was asked (%)",
    "grad_norm": "gradient norm",
}
LOGARITHMIC = ("test_loss", "train_loss", "grad_norm")


def drawn(entries: Sequence[Entry]) -> list[Entry]:
    """The groups that figures show: all of them, or of each place those with the highest test accuracy."""
    kept: list[Entry] = []
    for place in dict.fromkeys(entry.place for entry in entries):
        here = [entry for entry in entries if entry.place == place]
        ranked = sorted(here, key=lambda entry: -(entry.accuracy.mean if entry.accuracy else -1.0))
        kept += [entry for entry in here if entry in ranked[:MOST_LINES]]
    return kept


def curves(entries: Sequence[Entry], metrics: dict[str, str]) -> list[Chart]:
    """One figure for each metric that a run has, over epochs, passes and seconds."""
    found = [_curve(entries, metric, title) for metric, title in metrics.items()]
    return [chart for chart in found if chart["lines"]]


def tracked(entries: Sequence[Entry]) -> list[Chart]:
    """Flatness that ``lesam train --track`` measured on the way."""
    titles = {
        name: f"{measure.columns[column].label}, tracked"
        for measure in MEASURES.values()
        if measure.tracking is not None
        for name, column in measure.tracking.drawn.items()
    }
    return curves(entries, titles)


def front(entries: Sequence[Entry]) -> list[Chart]:
    """Test accuracy against what training cost, with the groups that nobody beats for their cost."""
    points: list[dict[str, Any]] = [
        {
            "group": each.entry.name,
            "x": dict(each.cost),
            "y": each.accuracy.mean * 100,
            "sd": each.accuracy.std * 100,
            "n": each.accuracy.n,
            "front": dict(each.front),
        }
        for each in priced(entries)
    ]
    axes = {name: title for name, title in AXES.items() if any(name in point["x"] for point in points)}
    chart = {"id": "front", "kind": "points", "title": "Test accuracy against cost", "y": "test accuracy (%)"}
    return [plain(chart | {"axes": axes, "points": points})] if points else []


def line(entry: Entry, xs: dict[str, list[float]], spreads: Sequence[Spread], scale: float, note: str = "") -> Chart:
    """One line with its band: the mean, one standard deviation up and down, and the number of runs at each point."""
    return {
        "group": entry.name,
        "note": note,
        "x": xs,
        "mean": [each.mean * scale for each in spreads],
        "sd": [each.std * scale for each in spreads],
        "n": [each.n for each in spreads],
    }


def _curve(entries: Sequence[Entry], metric: str, title: str) -> Chart:
    scale = 100.0 if metric.endswith(PERCENT) else 1.0
    lines: list[Chart] = [
        plain(found)
        for entry in entries
        for status in get_args(Status)
        if (found := _summarised(entry, status, metric, scale)) is not None
    ]
    heights = [mean for each in lines for mean in each["mean"] if mean is not None and mean > 0]
    wide = metric in LOGARITHMIC and bool(heights) and max(heights) >= 10 * min(heights)
    chart: Chart = {
        "id": metric,
        "kind": "lines",
        "title": title,
        "y": title,
        "axes": AXES,
        "log": wide,
        "lines": lines,
    }
    return chart


def _summarised(entry: Entry, status: Status, metric: str, scale: float) -> Chart | None:
    """The runs of a group that ended in one way, over the epochs that any of them has the metric for."""
    columns: dict[int, list[tuple[Member, int, float]]] = {}
    for member in entry.of_status(status):
        for index, value in member.series(metric).items():
            columns.setdefault(member.rows[index]["epoch"], []).append((member, index, value))
    epochs = thinned(sorted(columns))
    if not epochs:
        return None
    xs = {
        axis: [Spread.of([member.axes[axis][index] for member, index, _ in columns[epoch]]).mean for epoch in epochs]
        for axis in AXES
    }
    spreads = [Spread.of([value for _, _, value in columns[epoch]]) for epoch in epochs]
    return line(entry, xs, spreads, scale, "" if status == "finished" else status)


def thinned(values: Sequence[int], most: int = MOST_POINTS) -> list[int]:
    """Evenly spaced ones of many values, the first and the last among them.

    >>> thinned(range(10), most=4)
    [0, 3, 6, 9]
    """
    if len(values) <= most:
        return list(values)
    return [values[round(index * (len(values) - 1) / (most - 1))] for index in range(most)]
