"""Fine-tuning as tables, all from the records."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lesam.lab import console
from lesam.lab.config.optimizer import title
from lesam.lab.paper.study.document import BLOCK
from lesam.lab.paper.study.records import Record
from lesam.lab.paper.transfer.contest import ENTRIES, FINE_TUNED, PRETRAINED, SCRATCH
from lesam.lab.runs.statistics import PairedDifference, Spread
from lesam.lab.sweeps.tuning import Choice, Setting, words

Table = list[tuple[str, ...]]
"""Rows of cells, headings first."""

Scores = Mapping[str, Mapping[int, float]]
"""Values by entry and seed."""

RESULTS = "fine-tuning: both tasks"
DIFFERENCES = "fine-tuning: differences"
SEARCHES = "fine-tuning: searches"

EDGE = "*"
"""Behind a chosen setting with the smallest or largest of the numbers tried."""

COMPARED = (
    (title("sam"), FINE_TUNED.name),
    (title("lesam"), FINE_TUNED.name),
    (title("lesam"), title("sam")),
    (title("sam"), f"{FINE_TUNED.name}, twice the epochs"),
    (title("lesam"), f"{FINE_TUNED.name}, twice the epochs"),
    (FINE_TUNED.name, SCRATCH),
)
"""Whose differences are asked for: the first minus the second."""


def new_accuracy(one: Record) -> float | None:
    """Test accuracy on the new task in percent."""
    return one.score


def forgotten(one: Record) -> float | None:
    """Points of the old task's accuracy that were lost; None for a network without an old task."""
    before, after = one.last.get("old_accuracy_before"), one.last.get("old_accuracy")
    return None if before is None or after is None else 100.0 * (before - after)


QUANTITIES: Mapping[str, Callable[[Record], float | None]] = {
    "accuracy on the new task": new_accuracy,
    "forgotten of the old task": forgotten,
}
"""In percentage points."""


def tables(records: Sequence[Record]) -> dict[str, Table]:
    """All tables that have rows, by heading."""
    made = {RESULTS: _results(records), DIFFERENCES: _differences(records), SEARCHES: _searches(records)}
    return {heading: table for heading, table in made.items() if len(table) > 1}


def filled(text: str, records: Sequence[Record]) -> str:
    """A document with every table made again; a heading that there is no table for is an error."""
    made = tables(records)

    def table(match: re.Match[str]) -> str:
        heading = match["heading"]
        if heading not in (RESULTS, DIFFERENCES, SEARCHES):
            raise ValueError(f"there is no table {heading!r}; there are {RESULTS}, {DIFFERENCES} and {SEARCHES}")
        found = console.markdown(made[heading]) if heading in made else "Not run yet.\n"
        return f"{match[1]}\n{found}\n{match[3]}"

    return BLOCK.sub(table, text)


def fill(document: Path, records: Sequence[Record]) -> None:
    """Write all tables of a document again."""
    document.write_text(filled(document.read_text(), records))


def _results(records: Sequence[Record]) -> Table:
    rows: Table = [
        ("", "passes", "chosen on validation", "n", "new task (%)", "old task (%)", "forgotten (points)", "moved (%)")
    ]
    before = [one for one in records if one.entry == PRETRAINED and one.part == "repeat"]
    if before:
        old = _spread([one.score for one in before])
        rows.append(("before fine-tuning", "", "", str(len(before)), "", old, "", ""))
    searched = _searched(records)
    for entry in ENTRIES:
        runs = [one for one in records if one.entry == entry.name and one.part == "repeat"]
        if not runs:
            continue
        setting = runs[0].setting
        edge = Choice(setting=setting, scores=searched.get(entry.name, {})).at_edge
        lost = sum(one.diverged for one in runs)
        rows.append(
            (
                entry.name,
                f"{Spread.of([one.last.get('passes') or 0.0 for one in runs]).mean:.3g}",
                words(setting) + (EDGE if edge else ""),
                str(len(runs)),
                _spread([one.score for one in runs]) + (f" ({lost} diverged)" if lost else ""),
                _percent(runs, "old_accuracy"),
                _spread([value for one in runs if (value := forgotten(one)) is not None]),
                _percent(runs, "moved"),
            )
        )
    return rows


def _differences(records: Sequence[Record]) -> Table:
    """Paired differences with intervals that hold together: Bonferroni over all that the table has."""
    pairs = []
    for quantity, value in QUANTITIES.items():
        scores = _scores(records, value)
        for ours, theirs in COMPARED:
            if PairedDifference.between(scores.get(ours, {}), scores.get(theirs, {})) is not None:
                pairs.append((quantity, ours, theirs, scores))
    rows: Table = [("", "difference (points)", "95 % interval, all together", "p", "n")]
    for quantity, ours, theirs, scores in pairs:
        found = PairedDifference.between(scores[ours], scores[theirs], comparisons=len(pairs))
        if found is not None:
            low, high = found.interval
            rows.append(
                (
                    f"{quantity}: {ours} minus {theirs}",
                    f"{found.spread.mean:+.2f}",
                    f"{low:+.2f} to {high:+.2f}",
                    f"{found.p:.2g}",
                    str(found.spread.n),
                )
            )
    return rows


def _searches(records: Sequence[Record]) -> Table:
    """The trials, with what they forgot, which did not count."""
    rows: Table = [("", "setting", "validation, new task (%)", "forgotten (points)", "moved (%)")]
    for name, scores in _searched(records).items():
        for setting, of in scores.items():
            runs = [one for one in records if (one.entry, one.part, one.setting) == (name, "search", setting)]
            lost = [value for one in runs if (value := forgotten(one)) is not None]
            moved = [100.0 * value for one in runs if (value := one.last.get("moved")) is not None]
            rows.append((name, words(setting), *map(_mean, (of, lost, moved))))
    return rows


def _mean(values: Sequence[float]) -> str:
    return f"{Spread.of(values).mean:.2f}" if values else ""


def _searched(records: Sequence[Record]) -> dict[str, dict[Setting, tuple[float, ...]]]:
    found: dict[str, dict[Setting, tuple[float, ...]]] = {}
    for entry in ENTRIES:
        for setting in entry.settings:
            of = [one for one in records if (one.entry, one.part, one.setting) == (entry.name, "search", setting)]
            if of:
                found.setdefault(entry.name, {})[setting] = tuple(one.score for one in of)
    return found


def _scores(records: Sequence[Record], value: Callable[[Record], float | None]) -> Scores:
    found: dict[str, dict[int, float]] = {}
    for one in records:
        score = value(one) if one.part == "repeat" else None
        if score is not None:
            found.setdefault(one.entry, {})[one.seed] = score
    return found


def _percent(runs: Sequence[Record], name: str) -> str:
    return _spread([100.0 * value for one in runs if (value := one.last.get(name)) is not None])


def _spread(values: Sequence[float]) -> str:
    return Spread.of(values).text(1.0) if values else ""
