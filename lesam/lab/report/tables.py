"""Tables from run folders: n, mean and sample standard deviation, in markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lesam.lab import console, recipes
from lesam.lab.recipes.published import published
from lesam.lab.recipes.recipe import MARK, Figure, figure_text
from lesam.lab.runs.repetitions import Group
from lesam.lab.runs.statistics import Spread


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a table: repetitions of one setting."""

    recipe: str
    scale: str
    label: str
    last: Spread
    best: Spread
    """Of the best epoch, which was chosen on the test set."""
    train: Spread
    capped: float | None
    """Share of all steps at the cap, where the loss budget has no say."""
    paper: Figure | None


def lines(groups: Sequence[Group]) -> list[Line]:
    """One line for each group with a finished run."""
    return [_line(group) for group in groups if group.finished]


def _line(group: Group) -> Line:
    summaries = [summary for run in group.finished if (summary := run.summary()) is not None]
    capped = [row["capped"] for run in group.finished for row in run.metrics() if row.get("capped") is not None]
    return Line(
        recipe=group.config.recipe,
        scale=group.config.scale,
        label=group.label + group.mark,
        last=Spread.of([summary["last"]["test_accuracy"] for summary in summaries]),
        best=Spread.of([summary["best_test_selected"]["test_accuracy"] for summary in summaries]),
        train=Spread.of([summary["last"]["train_accuracy"] for summary in summaries]),
        capped=sum(capped) / len(capped) if capped else None,
        paper=published(group.config),
    )


HEAD = ("recipe", "scale", "method", "n", "test (%)", "best epoch (%)*", "train (%)", "at cap (%)", "paper (%)")
NOTE = "Mean and sample standard deviation (n - 1) over seeds. * The best epoch was chosen on the test set."


def cells(table: Sequence[Line]) -> list[tuple[str, ...]]:
    """The text of every cell, headings first."""
    return [
        HEAD,
        *(
            (
                line.recipe,
                line.scale,
                line.label,
                str(line.last.n),
                line.last.text(),
                line.best.text(),
                line.train.text(),
                "" if line.capped is None else f"{line.capped * 100:.0f}",
                figure_text(line.paper) + (f" {MARK}" if line.paper and recipes.ours(line.recipe) else ""),
            )
            for line in table
        ),
    ]


def markdown(table: Sequence[Line], remarks: Sequence[str] = ()) -> str:
    """A markdown table with its note, and what there is to say about these runs."""
    return f"{console.markdown(cells(table))}\n" + "".join(f"{words}\n" for words in (note(table), *remarks))


def note(table: Sequence[Line]) -> str:
    """What a reader of the table has to know."""
    guessed = {line.recipe: text for line in table if line.paper and (text := recipes.ours(line.recipe))}
    marks = [
        f" {MARK} {recipe}: the paper does not give {text}; these are our choice." for recipe, text in guessed.items()
    ]
    return NOTE + "".join(marks)


def latex(table: Sequence[Line], remarks: Sequence[str] = ()) -> str:
    r"""A LaTeX ``tabular`` for booktabs; the note and the remarks are comments."""
    head, *rows = ([_escape(cell) for cell in row] for row in cells(table))
    body = [" & ".join(row) + r" \\" for row in rows]
    return "\n".join(
        [
            *(rf"% {words}" for words in (note(table), *remarks)),
            r"\begin{tabular}{lllrrrrrr}",
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
            *("recipe", "scale", "method", "n", "test_mean", "test_std", "best_mean", "best_std"),
            *("train_mean", "train_std", "capped", "paper_mean", "paper_std"),
        ]
    )
    for line in table:
        spreads = [value for spread in (line.last, line.best, line.train) for value in (spread.mean, spread.std)]
        # Printed with two decimals of a percentage, so that four of the fraction are all there are.
        paper = [None if value is None else round(value / 100, 6) for value in line.paper or (None, None)]
        values = [*spreads, line.capped, *paper]
        shown = ["" if value is None or math.isnan(value) else repr(value) for value in values]
        writer.writerow([line.recipe, line.scale, line.label, line.last.n, *shown])
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
