"""Figures from run folders: curves over training, the radius, sensitivity to the budget, the late switch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lesam.flatness.figures import drawn, shared_legend, whole_epochs
from lesam.lab.config.optimizer import budget_name
from lesam.lab.flatness.measures import MEASURES, TRACKED
from lesam.lab.report import style
from lesam.lab.report.style import PERCENT
from lesam.lab.runs.folder import Row
from lesam.lab.runs.repetitions import Group
from lesam.lab.runs.statistics import Spread

DEVIATION = "± one standard deviation over seeds"
"""What bands and bars are."""
THIN = 0.8
"""Width of lines of unfinished runs."""
RANGE = "smallest and largest radius of an epoch"
"""What the thin lines beside the radius are."""


def curves(groups: Sequence[Group]) -> Figure:
    """Test accuracy, training accuracy and training loss over epochs, with the spread over seeds."""
    _require(groups, "test_accuracy", "train_accuracy", "train_loss")
    figure, axes = panels(3, width=13)
    for axis, metric in zip(axes, ("test_accuracy", "train_accuracy", "train_loss"), strict=True):
        draw(axis, groups, metric)
    logarithmic(axes[2])
    shared_legend(figure)
    return figure


def radius(groups: Sequence[Group]) -> Figure:
    """Radius, gradient norm and share of steps at the cap over epochs: what the loss budget does."""
    _require(groups, "rho", "grad_norm", "capped", "sharpness")
    figure, axes = panels(4, width=16)
    for axis, metric in zip(axes, ("rho", "grad_norm", "capped", "sharpness"), strict=True):
        draw(axis, groups, metric)
    looks = style.looks_of(groups)
    ranges = [_range_of_radius(axes[0], group, looks[group.title].colour) for group in groups]
    if any(ranges):
        axes[0].plot([], [], color="black", linewidth=0.5, alpha=0.6, label=RANGE)
    axes[2].set_ylim(-3, 103)
    shared_legend(figure)
    return figure


def switch(groups: Sequence[Group]) -> Figure:
    """Test accuracy over epochs, with a mark where a run left its base optimizer."""
    _require(groups, "test_accuracy")
    figure, (axis,) = panels(1, width=6)
    names = {}
    for group in groups:
        at, name = group.config.schedule.switch_at, style.look(group.config.method).name
        whole = name if at is None else f"{style.look(group.config.optimizer.base).name}, {name} from {at}"
        names[group.title] = whole + group.mark
        if at is not None:
            axis.axvline(at, color="black", linestyle=":", linewidth=0.8)
    draw(axis, groups, "test_accuracy", names=names)
    shared_legend(figure)
    return figure


def sensitivity(groups: Sequence[Group]) -> Figure:
    """Last test accuracy against the budget (sigma, or rho), one line a method of each recipe and scale."""
    figure, (axis,) = panels(1, width=6)
    names = set()
    for dash, (method, place) in _lines(groups):
        points = []
        for group in groups:
            name = budget_name(group.config.optimizer)
            if (group.config.method, group.place) == (method, place) and name is not None and group.finished:
                names.add(name)
                points.append((getattr(group.config.optimizer, name), last_accuracy(group)))
                if group.diverged:
                    _cross(axis, *points[-1])
        points.sort(key=lambda point: point[0])
        if points:
            values, spreads = zip(*points, strict=True)
            heights = [spread.mean * 100 for spread in spreads]
            errors = [0.0 if np.isnan(spread.std) else spread.std * 100 for spread in spreads]
            look = style.look(method)
            label = f"{look.name}, {place}" if place else look.name
            axis.errorbar(
                values, heights, errors, linestyle=dash, label=label, color=look.colour, marker="o", capsize=3
            )
    if not names:
        raise ValueError("sensitivity needs finished runs of a method with a radius or a budget")
    axis.set_xlabel(" or ".join(sorted(names)))
    tried = {getattr(group.config.optimizer, budget_name(group.config.optimizer) or "", None) for group in groups}
    ticks = sorted(value for value in tried if value is not None)
    axis.set_xticks(ticks, [f"{value:.3g}" for value in ticks])
    axis.set_ylabel("test accuracy (%)")
    if any(len(group.finished) > 1 for group in groups):
        axis.errorbar([], [], [], color="black", fmt="none", capsize=3, label=DEVIATION)
    shared_legend(figure)
    return figure


def _lines(groups: Sequence[Group]) -> list[tuple[str, tuple[str, str]]]:
    """Methods and places, each with a dash that tells the places of a method apart."""
    lines = dict.fromkeys((group.config.method, group.place) for group in groups)
    places = list(dict.fromkeys(place for _, place in lines))
    return [(style.DASHES[places.index(place) % len(style.DASHES)], (method, place)) for method, place in lines]


def flatness(groups: Sequence[Group]) -> Figure:
    """What ``lesam train --track`` measured, one line a run: the clock decides which epochs have a value."""
    runs = [(group.title, rows) for group in groups for rows in group.rows()]
    labels = _tracked()
    metrics = [name for name in labels if any(row.get(name) is not None for _, rows in runs for row in rows)]
    if not metrics:
        raise ValueError(f"none of the runs has flatness in its metrics; train with --track {','.join(TRACKED)}")
    figure, axes = panels(len(metrics), width=4.4 * len(metrics))
    looks = style.looks_of(groups)
    for axis, metric in zip(axes, metrics, strict=True):
        for name, rows in runs:
            points = {row["epoch"] + 1: row[metric] for row in rows if row.get(metric) is not None}
            label = "" if name in axis.get_legend_handles_labels()[1] else name
            look = looks[name]
            axis.plot(list(points), list(points.values()), look.dash, marker=".", color=look.colour, label=label)
        axis.grid(alpha=0.3)
        axis.set(xlabel="epoch", ylabel=labels[metric])
        whole_epochs(axis)
    shared_legend(figure)
    return figure


KINDS: dict[str, Callable[[Sequence[Group]], Figure]] = {
    "curves": curves,
    "flatness": flatness,
    "radius": radius,
    "sensitivity": sensitivity,
    "switch": switch,
}


def comparison(groups: Sequence[Group]) -> Figure:
    """Test accuracy and radius over training, side by side."""
    figure, (left, right) = panels(2, width=11, height=4.2)
    draw(left, groups, "test_accuracy")
    draw(right, groups, "rho")
    right.set_ylabel("perturbation radius")
    shared_legend(figure)
    return figure


def panels(number: int, *, width: float, height: float = 4.0) -> tuple[Figure, list[Any]]:
    """A figure with panels side by side, made without pyplot: nothing global, no window, safe in threads."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, number, squeeze=False)[0])


def draw(axis: Axes, groups: Sequence[Group], metric: str, *, names: Mapping[str, str] | None = None) -> None:
    """One metric over epochs: the mean over seeds, and a band of one standard deviation.

    Unfinished runs are thin lines. All groups of a panel are drawn at once: together they decide looks and limits.

    Args:
        axis: The panel.
        groups: One line each.
        metric: A column of ``metrics.jsonl``.
        names: What to call a group instead of its title.
    """
    looks = style.looks_of(groups)
    for group, (runs, note) in [(each, part) for each in groups for part in _parts(each)]:
        epochs, mean, std = over_seeds(runs, metric)
        if not len(epochs):
            continue
        scale = 100.0 if metric.endswith(PERCENT) else 1.0
        look, name = looks[group.title], (names or {}).get(group.title, group.title) + note
        axis.plot(
            epochs,
            mean * scale,
            look.dash,
            marker=_marker(epochs),
            color=look.colour,
            linewidth=THIN if note else None,
            label=name + _uneven(runs),
        )
        axis.fill_between(
            epochs, (mean - std) * scale, (mean + std) * scale, color=look.colour, alpha=0.15, linewidth=0
        )
    if any(len(group.runs) > 1 for group in groups):
        axis.fill_between([], [], color="black", alpha=0.15, linewidth=0, label=DEVIATION)
    if metric.endswith(PERCENT):
        axis.set_ylim(max(axis.get_ylim()[0], 0.0), min(axis.get_ylim()[1], 101.0))
    axis.grid(alpha=0.3)
    axis.set_xlabel("epoch")
    whole_epochs(axis)
    axis.set_ylabel(metric.replace("_", " ") + (" (%)" if metric.endswith(PERCENT) else ""))


def _marker(epochs: np.ndarray) -> str:
    """What a line is drawn with besides itself: one of a single epoch has no length to be seen by."""
    return "o" if len(epochs) == 1 else ""


def caption(figure: Figure, groups: Sequence[Group]) -> Figure:
    """Say above the panels whose runs they show: recipe, scale and number of seeds; returns the figure.

    Unfinished runs are not counted, except in groups that have no others.
    """
    seeds: dict[str, set[int]] = {}
    for group in groups:
        seeds.setdefault(f"{group.config.recipe}, {group.config.scale} scale", set()).add(len(_parts(group)[0][0]))
    words = [f"{place}, n = {' to '.join(str(n) for n in sorted({min(of), max(of)}))}" for place, of in seeds.items()]
    figure.suptitle("; ".join(words), fontsize="small", wrap=True)
    return figure


def logarithmic(axis: Axes) -> None:
    """A logarithmic scale where the curves span a factor of ten; below that it has hardly a tick."""
    heights = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axis.lines] or [np.ones(1)])
    positive = heights[np.isfinite(heights) & (heights > 0)]
    if len(positive) and positive.max() >= 10 * positive.min():
        axis.set_yscale("log")


def over_seeds(runs: Sequence[Sequence[Row]], metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Epochs (counted from 1) that any run has the metric for, its mean and sample standard deviation over those."""
    series = [{row["epoch"] + 1: row[metric] for row in rows if row.get(metric) is not None} for rows in runs]
    epochs = sorted({epoch for values in series for epoch in values})
    spreads = [Spread.of([float(values[epoch]) for values in series if epoch in values]) for epoch in epochs]
    # The band of a single run has no width.
    return np.array(epochs), np.array([each.mean for each in spreads]), np.nan_to_num([each.std for each in spreads])


def last_accuracy(group: Group) -> Spread:
    """Test accuracy of the last epoch over the finished runs of a group."""
    summaries = [summary for run in group.finished if (summary := run.summary()) is not None]
    return Spread.of([summary["last"]["test_accuracy"] for summary in summaries])


def _require(groups: Sequence[Group], *metrics: str) -> None:
    """Refuse to draw an empty picture."""
    rows = [row for group in groups for rows in group.rows() for row in rows]
    if not any(row.get(metric) is not None for row in rows for metric in metrics):
        runs = ", ".join(str(run.path) for group in groups for run in group.runs)
        raise ValueError(f"there is nothing to draw yet: no epoch with {' or '.join(metrics)} in {runs}")


def _parts(group: Group) -> list[tuple[list[list[Row]], str]]:
    """The epochs of the runs that have ended, and apart from them those of unfinished ones, with a note on these."""
    ended = [run for run in group.runs if run.summary() is not None]
    parts = ((ended, ""), ([run for run in group.runs if run not in ended], ", unfinished"))
    return [([run.metrics() for run in runs], note) for runs, note in parts if runs]


def _uneven(runs: Sequence[Sequence[Row]]) -> str:
    """How many repetitions there are where they are not equally long, for the legend."""
    lengths = sorted(map(len, runs))
    if lengths[0] == lengths[-1]:
        return ""
    return f" (n = {len(lengths)} up to epoch {lengths[0]}, then fewer)"


def save(figure: Figure, path: Path) -> Path:
    """Write a figure in the format of the file's name, PNG where it has none; returns the file."""
    file = path if path.suffix else path.with_suffix(".png")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(drawn(figure, file.suffix[1:]))
    return file


def _tracked() -> dict[str, str]:
    """Columns of the metrics that ``lesam train --track`` writes, and what they are called in a figure."""
    return {
        name: measure.columns[column].label
        for measure in MEASURES.values()
        if measure.tracking is not None
        for name, column in measure.tracking.drawn.items()
    }


def _cross(axis: Axes, value: float, spread: Spread) -> None:
    """A black cross on a point of which runs diverged, named once in the legend."""
    label = "diverged"
    known = axis.get_legend_handles_labels()[1]
    axis.plot([value], [spread.mean * 100], "x", color="black", zorder=5, label="" if label in known else label)


def _range_of_radius(axis: Axes, group: Group, colour: str) -> bool:
    """The smallest and largest radius of each epoch, lightly; whether there is one."""
    seen = False
    runs, _ = _parts(group)[0]
    for bound in ("rho_min", "rho_max"):
        epochs, mean, _ = over_seeds(runs, bound)
        axis.plot(epochs, mean, marker=_marker(epochs), markersize=2, color=colour, linewidth=0.5, alpha=0.6)
        seen = seen or bool(len(epochs))
    return seen
