"""The study as pictures, all from its records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from lesam.flatness.figures import legend_below, shared_legend
from lesam.lab.config.optimizer import title
from lesam.lab.paper.study.entries import MLP, Ranges
from lesam.lab.paper.study.groups import BOTH, STUDY, groups, labels_of
from lesam.lab.paper.study.quantities import ACCURACY, quantities
from lesam.lab.paper.study.records import Record
from lesam.lab.paper.study.scan import Line, budget_lines
from lesam.lab.paper.study.verdicts import Difference
from lesam.lab.report import style
from lesam.lab.report.paper_size import HEIGHT, LINE, WIDTHS

WIDTH = WIDTHS["page"]

AS_THEY_COMPETE = f"methods: {title('lesam')} and {title('lesamplus')} {BOTH}, the others at constant radii"
"""What no row says by itself."""

SHOWN = 7
"""Points of accuracy below the best that the picture of budgets shows."""


def figures(records: Sequence[Record], scale: str = "small") -> dict[str, Figure]:
    """Every picture that the records allow, by name."""
    own = [one for one in records if one.recipe == MLP.recipe]
    drawn = {
        "study-accuracy": accuracies(MLP, own, scale),
        "study-budgets": budgets(budget_lines(MLP, own), scale),
        "study-flatness": flatness(own, scale),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def accuracies(stage: Ranges, records: Sequence[Record], scale: str) -> Figure | None:
    """Differences to the base of all that was repeated, with plain 95 % intervals."""
    scores = quantities(records).get(ACCURACY, {})
    base = title(stage.base)
    shown = {}
    for name in STUDY.names(stage, scale):
        bar = base + labels_of(name)
        found = Difference.between(scores.get(name, {}), scores.get(bar, {}))
        if found is not None and name != bar:
            shown[name] = found
    if not shown:
        return None
    rows = _rows(stage, scale, shown)
    order = [name for name in rows if name in shown]
    figure = Figure(figsize=(WIDTH, 0.8 + 0.22 * len(rows)), layout="constrained")
    axis = figure.add_subplot()
    colours = _colours(stage, scale)
    # An entry that lost the run would make one column of all others: it is written at the edge.
    edge = -max(shown[name].spread.mean for name in order)
    far = [name for name in order if shown[name].spread.mean < edge < 0]
    for height, name in enumerate(rows):
        if name not in shown:
            axis.axhspan(height - 0.5, height + 0.5, color="black", alpha=0.08, linewidth=0, zorder=0)
            continue
        mean, half = shown[name].spread.mean, shown[name].half_width
        if name in far:
            words = f"\N{LEFTWARDS ARROW} {mean:.1f} ({mean - half:.1f} to {mean + half:.1f})"
            axis.annotate(words, (edge, height), (4, 0), textcoords="offset points", va="center", fontsize="small")
        else:
            axis.errorbar(mean, height, xerr=half, fmt="o", color=colours[name], capsize=2, markersize=4)
    if far:
        axis.set_xlim(left=edge)
    axis.set_yticks(range(len(rows)), rows, fontsize="small")
    for label in axis.get_yticklabels():
        label.set_fontweight("normal" if label.get_text() in shown else "bold")
    axis.axvline(0.0, color="black", linewidth=0.8)
    axis.set_xlabel(f"test accuracy above {base} on the same labels (points)")
    axis.grid(axis="x", alpha=0.3)
    axis.set_ylim(-0.7, len(rows) - 0.5)
    counts = [found.spread.n for found in shown.values()]
    seeds = " to ".join(str(n) for n in sorted({min(counts), max(counts)}))
    return _captioned(figure, scale, f"means and 95 % intervals, n = {seeds}\n{AS_THEY_COMPETE}")


def budgets(lines: Sequence[Line], scale: str) -> Figure | None:
    """Validation accuracy over the budget, with warm-ups on the left and caps on the right."""
    if not lines:
        return None
    panels = {kind: [line for line in lines if line.kind in (kind, "neither")] for kind in ("warm-up", "cap")}
    figure = Figure(figsize=(WIDTH, HEIGHT + LINE * max(map(len, panels.values())) + 1.0))
    # A legend under an axis is placed by the axis' height, which the layout has changed by then: leave it some room.
    figure.set_layout_engine("constrained", rect=(0.0, 0.03, 1.0, 0.97))
    left, right = figure.subplots(1, 2, sharey=True)
    # Lines without a collapse differ by a few points, which one that collapses would hide: it ends at the edge.
    best = max(max(line.accuracies) for line in lines)
    floor = best - SHOWN
    looks = iter(style.CYCLE)
    for axis, kind, heading in ((left, "warm-up", "warm-up"), (right, "cap", "no warm-up, a cap")):
        _draw_lines(axis, panels[kind], floor, looks)
        axis.set_title(heading, fontsize="medium")
        axis.set_xlabel("budget sigma")
        legend_below(axis)
    left.set_ylim(floor, best + 0.5)
    left.set_ylabel("validation accuracy (%)")
    return _captioned(figure, scale, f"means over two seeds; triangles: below {floor:.0f} %")


def flatness(records: Sequence[Record], scale: str) -> Figure | None:
    """Largest eigenvalue and trace over the training loss: one line for each run, from right to left."""
    tracked = [one for one in records if one.part == "track" and one.curve.get("epoch")]
    if not tracked:
        return None
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    colours = _colours(MLP, scale)
    measures = (("eigenvalue", "largest eigenvalue"), ("trace", "trace"))
    for axis, (column, words) in zip(figure.subplots(1, 2), measures, strict=True):
        said: set[str] = set()
        for one in tracked:
            label = None if one.entry in said else one.entry
            said.add(one.entry)
            look = {"color": colours[one.entry], "linestyle": "--" if one.entry.endswith(BOTH) else "-"}
            axis.plot(one.curve["train_loss"], one.curve[column], alpha=0.6, lw=0.8, label=label, **look)
        label = f"{words} of the Hessian"
        axis.set(xscale="log", yscale="log", xlabel="training loss \N{RIGHTWARDS ARROW}", ylabel=label)
        for each in (axis.xaxis, axis.yaxis):
            each.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            each.set_major_formatter("{x:g}")
            each.set_minor_formatter(NullFormatter())
        axis.invert_xaxis()
    shared_legend(figure)
    return _captioned(figure, scale, "one line for each run")


def _rows(stage: Ranges, scale: str, shown: Mapping[str, Difference]) -> list[str]:
    """Entries from the lowest row to the highest: the best of a section above, and a section's heading above that."""
    own = {title(stage.base), *(entry.name for group in groups(stage, scale)[:2] for entry in group.entries)}
    sections = {
        "wrong labels": [name for name in shown if labels_of(name)],
        "variants and controls": [name for name in shown if name not in own and not labels_of(name)],
        "methods": [name for name in shown if name in own],
    }
    found: list[str] = []
    for heading, names in sections.items():
        found += [*sorted(names, key=lambda name: shown[name].spread.mean), heading] if names else []
    return found


def _captioned(figure: Figure, scale: str, words: str) -> Figure:
    figure.suptitle(f"{MLP.recipe}, {scale} scale; {words}", fontsize="small")
    return figure


def _draw_lines(axis: Axes, lines: Sequence[Line], floor: float, looks: Iterator[str]) -> None:
    for line in lines:
        alone = line.kind == "neither"
        own = style.FIXED["lesam"] if alone else next(looks)
        # Where a cap never decides the two are the same: the one that has none is seen above it.
        above: dict[str, Any] = {"linestyle": ":", "zorder": 3, "lw": 2.5} if alone else {}
        axis.plot(line.budgets, line.accuracies, marker="o", color=own, label=line.name, markersize=3, **above)
        fallen = [budget for budget, found in zip(line.budgets, line.accuracies, strict=True) if found < floor]
        if fallen:  # a line without points would be laid out as if it lay outside the axis
            axis.plot(fallen, [floor] * len(fallen), "v", color=own, clip_on=False, zorder=4)
    axis.set_xscale("log", base=2)
    axis.set_xticks(lines[0].budgets, [f"{budget:g}" for budget in lines[0].budgets])
    axis.grid(alpha=0.3)


def _colours(stage: Ranges, scale: str) -> Mapping[str, str]:
    """The colour of each entry's method by the entry's name."""
    found: dict[str, str] = {}
    for group in groups(stage, scale):
        found |= {entry.name: style.colour(entry.method) for entry in group.entries}
        found |= {one.name: style.colour(one.leader.method) for one in group.followers}
    return found
