"""Tables from run folders: n, mean and sample standard deviation, in markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lesam.lab import console, recipes
from lesam.lab.config.run import RunConfig
from lesam.lab.recipes.published import published
from lesam.lab.recipes.recipe import MARK, Figure, figure_text, not_given
from lesam.lab.runs.repetitions import Group, repetition, settings
from lesam.lab.runs.statistics import Spread, paired


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a table: repetitions of one setting."""

    recipe: str
    scale: str
    label: str
    diverged: int
    """How many of the runs ended without a finite loss."""
    last: Spread
    best: Spread
    """Of the best epoch, which was chosen on the test set."""
    train: Spread
    capped: float | None
    """Share of all steps at the cap, where the loss budget has no say."""
    paper: Figure | None
    ours: str = ""
    """Settings that the paper does not give, at its scale; tables mark them."""
    gain: Spread | None
    """Test accuracy minus that of the plain base optimizer, seed by seed."""


def lines(groups: Sequence[Group]) -> list[Line]:
    """One line for each group with a finished run."""
    return [_line(group, _base(group, groups)) for group in groups if group.finished]


def _base(group: Group, groups: Sequence[Group]) -> Group | None:
    """The runs of the base optimizer in the same place, None where there is not exactly one such group.

    The same recipe and scale, on the same data, with the same network, for as long.
    """
    mine = group.config
    found = [
        other
        for other in groups
        if other.config.method == mine.optimizer.base and circumstances(other.config) == circumstances(mine)
    ]
    return found[0] if len(found) == 1 and found[0] is not group else None


def circumstances(config: RunConfig) -> dict[str, object]:
    """What two runs must share to be compared: everything but the optimizer and the way of its rate and budget."""
    place = {"recipe": config.recipe, "scale": config.scale, "length": (config.schedule.epochs, config.schedule.steps)}
    kept = ("data.", "model.", "task.", "system.")
    return place | {path: value for path, value in settings(config).items() if path.startswith(kept)}


def _by_seed(group: Group) -> dict[tuple[int, str], float]:
    summaries = [(repetition(run.config()), run.summary() or {}) for run in group.finished]
    return {seed: summary["last"]["test_accuracy"] for seed, summary in summaries}


def _line(group: Group, base: Group | None) -> Line:
    summaries = [summary for run in group.finished if (summary := run.summary()) is not None]
    capped = [row["capped"] for run in group.finished for row in run.metrics() if row.get("capped") is not None]
    return Line(
        recipe=group.config.recipe,
        scale=group.config.scale,
        label=group.label + group.mark,
        diverged=len(group.diverged),
        last=_spread([summary["last"]["test_accuracy"] for summary in summaries]),
        best=_spread([summary["best_test_selected"]["test_accuracy"] for summary in summaries]),
        train=_spread([summary["last"].get("train_accuracy") for summary in summaries]),
        capped=Spread.of(capped).mean if capped else None,
        paper=published(group.config),
        ours=recipes.ours(group.config.recipe, group.config.method) if group.config.scale == "paper" else "",
        gain=None if base is None else paired(_by_seed(group), _by_seed(base)),
    )


def _spread(values: Sequence[float | None]) -> Spread:
    """Of the values that are known; of none at all, without a mean."""
    known = [value for value in values if value is not None]
    return Spread.of(known) if known else Spread(0, math.nan, math.nan)


HEAD = (
    "recipe",
    "scale",
    "method",
    "n",
    "test (%)",
    "best epoch (%)*",
    "train (%)",
    "at cap (%)",
    "paper (%)",
    "gain**",
)
NOTE = (
    "Mean and sample standard deviation (n - 1) over seeds. * The best epoch was chosen on the test set. ** Test "
    "accuracy minus that of the plain base optimizer in points, over the seeds that both have."
)


def cells(table: Sequence[Line]) -> list[tuple[str, ...]]:
    """The text of every cell, headings first."""
    return [
        HEAD,
        *(
            (
                line.recipe,
                line.scale + (f" {MARK}" if line.ours else ""),
                line.label,
                str(line.last.n),
                *(spread.text() if spread.n else "" for spread in (line.last, line.best, line.train)),
                "" if line.capped is None else f"{line.capped * 100:.0f}",
                figure_text(line.paper) + (f" {MARK}" if line.paper and line.ours else ""),
                "" if line.gain is None else line.gain.signed(),
            )
            for line in table
        ),
    ]


def markdown(table: Sequence[Line], remarks: Sequence[str] = ()) -> str:
    """A markdown table with its note, and what there is to say about these runs."""
    return f"{console.markdown(cells(table))}\n" + "".join(f"{words}\n" for words in (note(table), *remarks))


def note(table: Sequence[Line]) -> str:
    """What a reader of the table has to know."""
    guessed: dict[str, list[str]] = {}
    for line in table:
        if line.ours:
            guessed.setdefault(line.ours, []).append(f"{line.recipe} with {line.label}")
    return NOTE + "".join(f" {MARK} {', '.join(lines)}: {not_given(text)}" for text, lines in guessed.items())


def latex(table: Sequence[Line], remarks: Sequence[str] = ()) -> str:
    r"""A LaTeX ``tabular`` for booktabs; the note and the remarks are comments."""
    head, *rows = ([_escape(cell) for cell in row] for row in cells(table))
    body = [" & ".join(row) + r" \\" for row in rows]
    return "\n".join(
        [
            *(rf"% {words}" for words in (note(table), *remarks)),
            r"\begin{tabular}{lllrrrrrrr}",
            r"\toprule",
            " & ".join(head) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def comma_separated(table: Sequence[Line]) -> str:
    """CSV with full precision; every accuracy and share is a fraction, the paper's as well."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            *("recipe", "scale", "method", "n", "diverged", "test_mean", "test_std", "best_mean", "best_std"),
            *("train_mean", "train_std", "capped", "paper_mean", "paper_std", "gain_mean", "gain_std"),
            "not_given_by_paper",
        ]
    )
    for line in table:
        spreads = [value for spread in (line.last, line.best, line.train) for value in (spread.mean, spread.std)]
        # Printed with two decimals of a percentage, so that four of the fraction are all there are.
        paper = [None if value is None else round(value / 100, 6) for value in line.paper or (None, None)]
        gain = (None, None) if line.gain is None else (line.gain.mean, line.gain.std)
        values = [*spreads, line.capped, *paper, *gain]
        shown = ["" if value is None or math.isnan(value) else repr(value) for value in values]
        writer.writerow([line.recipe, line.scale, line.label, line.last.n, line.diverged, *shown, line.ours])
    return text.getvalue()


FORMATS: dict[str, Callable[[Sequence[Line], Sequence[str]], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": lambda table, remarks: comma_separated(table),
}
"""From lines and remarks to text; a CSV file has no place for remarks."""


def _escape(text: str) -> str:
    for plain, escaped in (("%", r"\%"), ("_", r"\_"), ("±", r"$\pm$"), ("*", r"$^*$"), (MARK, r"$^\dagger$")):
        text = text.replace(plain, escaped)
    return text
