"""Tables of the page as plain records: columns, and cells with the text that is shown and the number behind it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lesam.lab.flatness.measures import MEASURES
from lesam.lab.report.page.comparison import Contest
from lesam.lab.report.page.entries import Entry, Member, number, plain, spread
from lesam.lab.report.page.headline import p_text
from lesam.lab.report.page.kept import Kept
from lesam.lab.report.page.quantities import QUANTITIES
from lesam.lab.runs.repetitions import settings
from lesam.lab.runs.statistics import Spread

Table = dict[str, Any]
Cell = dict[str, Any]

OVER_SEEDS = "Mean ± sample standard deviation (n - 1) over seeds; without ± there is one run."


def summary(entries: Sequence[Entry], kept: Kept) -> Table:
    """One line for each group: what it reached, what it cost, how flat it is."""
    flat = [(measure, column) for measure in MEASURES.values() for column in measure.columns.values()]
    rows = []
    for entry in entries:
        measured = [
            spread(column.value(answer.result) for answer in kept.final(measure.name, entry))
            for measure, column in flat
        ]
        rows.append(
            [
                _group(entry),
                *([_text(entry.place)] if _several(entries) else []),
                _number(len(entry.accuracy_by_seed)),
                _text(entry.status()),
                *(_spread(quantity.over(entry), percent=quantity.percent) for quantity in QUANTITIES),
                *(_spread(found) for found in measured),
            ]
        )
    titles = [column.label for _, column in flat]
    columns = [
        _column("method"),
        *([_column("recipe, scale")] if _several(entries) else []),
        _column("n", "number"),
        _column("runs"),
        *(_column(quantity.title, "spread") for quantity in QUANTITIES),
        *(_column(title, "spread") for title in titles),
    ]
    note = (
        f"{OVER_SEEDS} Accuracies are of the last epoch; the gap is training accuracy, as seen in training, minus test "
        "accuracy. The rise is that of the loss over a step's climb. Flatness is that of the last weights."
    )
    return _table("summary", "Summary", note, columns, rows)


def differences(contests: Sequence[Contest]) -> Table:
    """Every pair that may be compared, on equal seeds."""
    rows = []
    for pair in (pair for contest in contests for pair in contest.pairs):
        found, corrected = pair.difference, pair.p
        low, high = (None, None) if found is None else (bound * 100 for bound in found.interval)
        unpaired = "; ".join(f"{name}: {', '.join(seeds)}" for name, seeds in pair.unpaired.items())
        rows.append(
            [
                _group(pair.better),
                _group(pair.other),
                _number(0 if found is None else found.spread.n),
                _spread(None if found is None else found.spread, percent=True),
                _number(low, "" if low is None else f"{low:+.2f}"),
                _number(high, "" if high is None else f"{high:+.2f}"),
                _number(
                    corrected, "" if corrected is None else p_text(corrected).removeprefix("p = ").removeprefix("p ")
                ),
                _text(pair.verdict),
                _text(unpaired),
            ]
        )
    columns = [
        _column("higher mean"),
        _column("lower mean"),
        _column("common seeds", "number"),
        _column("difference (points)", "spread"),
        _column("95 % from", "number"),
        _column("95 % to", "number"),
        _column("p, corrected", "number"),
        _column("difference"),
        _column("unpaired seeds"),
    ]
    note = (
        "Differences of test accuracy between runs of equal seeds, data, network and length, with the 95 % interval of "
        "the paired t-test; higher is the mean over the common seeds. p is corrected for the number of all pairs "
        "(Bonferroni); seeds that only one side has are named and not counted."
    )
    return _table("differences", "Paired differences", note, columns, rows)


def configuration(entries: Sequence[Entry]) -> Table:
    """What differs between the configurations, and nothing else."""
    every = {entry.name: settings(entry.group.config) for entry in entries}
    paths = dict.fromkeys(path for mine in every.values() for path in mine)
    differing = [path for path in paths if len({repr(mine.get(path, "")) for mine in every.values()}) > 1]
    rows = [[_group(entry), *(_value(every[entry.name], path) for path in differing)] for entry in entries if differing]
    columns = [_column("method"), *(_column(path) for path in differing)]
    note = "Only settings in which the groups differ; an empty cell is a setting that the method does not have."
    return _table("configuration", "Differences of configuration", note, columns, rows)


def flatness(entries: Sequence[Entry], kept: Kept) -> Table:
    """What was measured at each kept checkpoint."""
    flat = [(measure, column) for measure in MEASURES.values() for column in measure.columns.values()]
    rows = []
    for entry in entries:
        answers = {
            measure.name: [answer for answer in kept.of(measure.name, entry) if answer.ended] for measure, _ in flat
        }
        for epoch in sorted({answer.epoch for every in answers.values() for answer in every}):
            found = [
                spread(column.value(answer.result) for answer in answers[measure.name] if answer.epoch == epoch)
                for measure, column in flat
            ]
            rows.append([_group(entry), _number(epoch), *(_spread(each) for each in found)])
    columns = [_column("method"), _column("epoch", "number"), *(_column(each.label, "spread") for _, each in flat)]
    return _table("flatness", "Flatness at kept checkpoints", OVER_SEEDS, columns, rows)


def runs(entries: Sequence[Entry], *, links_from: Path | None) -> Table:
    """Every run: how it ended, where it lies and what it ran on."""
    rows = []
    for entry in entries:
        for member in entry.members:
            start = last_start(member)
            accuracy = number(member.last.get("test_accuracy"))
            rows.append(
                [
                    _folder(member, links_from),
                    _group(entry),
                    _number(member.seed),
                    _text(ended(member)),
                    _number(member.epochs),
                    _number(*(None, "") if accuracy is None else (accuracy * 100, f"{accuracy * 100:.2f}")),
                    *(_text(words) for words in start),
                ]
            )
    columns = [
        _column("folder"),
        _column("method"),
        _column("seed", "number"),
        _column("status"),
        _column("epochs", "number"),
        _column("test accuracy (%)", "number"),
        *(_column(title) for title in ("started (UTC)", "commit", "versions", "machine", "command")),
    ]
    return _table("runs", "Runs", "Every run folder of the page, and what its last start ran on.", columns, rows)


def search(history: Mapping[str, Any], id: str) -> Table:
    """Every trial of a search, as its history has them."""
    trials = history["trials"]
    paths = list(dict.fromkeys(path for trial in trials for path in trial["setting"]))
    rows = []
    for trial in trials:
        every = list(trial["runs"].values())
        ended = spread(number(run["accuracy"]) for run in every)
        rows.append(
            [
                _value(trial, "number"),
                *(_value(trial["setting"], path) for path in paths),
                _text(str(trial["state"])),
                _spread(ended, percent=True),
                _number(0 if ended is None else ended.n),
                _number(sum(number(run["epochs"]) or 0.0 for run in every)),
                *(_text(str(trial[name] or "")) for name in ("host", "started", "ended")),
                _text("" if trial["resumes"] is None else str(trial["resumes"])),
                _text(str(trial["error"])),
            ]
        )
    columns = [
        _column("trial", "number"),
        *(_column(path) for path in paths),
        _column("state"),
        _column("validation accuracy (%)", "spread"),
        _column("runs", "number"),
        _column("epochs", "number"),
        *(_column(title) for title in ("machine", "started (UTC)", "ended (UTC)", "resumes trial", "error")),
    ]
    note = (
        "Every trial of the search, in the order in which they were proposed. Accuracies are of the runs that came to "
        "their end, epochs of all runs of the trial; a setting that was given back is tried again by the trial that "
        "resumes it."
    )
    return _table(id, f"Search {history['study']}", note, columns, rows)


def ended(member: Member) -> str:
    """How a run ended, or how far it is."""
    at = (member.summary or {}).get("diverged_at")
    if member.status == "diverged" and at is not None:
        return f"diverged at step {at}"
    if member.status == "unfinished":
        return f"unfinished, {member.epochs} of {member.config.schedule.epochs} epochs"
    return member.status


def last_start(member: Member) -> list[str]:
    """When, with which commit and versions, where and by which command a run was last started."""
    try:
        start = member.run.environments()[-1]
        commit = start.get("commit") or {}
        packages = start.get("packages") or {}
        changed = " (modified)" if commit.get("modified") else ""
        versions = ", ".join(f"{name} {packages[name]}" for name in ("lesam", "torch") if name in packages)
        machine = [start.get("hostname"), (start.get("cpu") or {}).get("model"), *(start.get("gpus") or [])]
        return [
            str(start.get("started", "")),
            f"{str(commit.get('id', ''))[:10]}{changed}",
            versions,
            ", ".join(str(part) for part in machine if part),
            str(start.get("command", "")),
        ]
    except (ValueError, TypeError, LookupError, AttributeError, OSError):
        return [""] * 5


def _folder(member: Member, links_from: Path | None) -> Cell:
    path = member.run.path
    if links_from is None:
        return _text(path.name)
    relative = Path(os.path.relpath(path.resolve(), links_from.resolve())).as_posix()
    return _text(path.name) | {"href": quote(os.fsencode(relative)) + "/"}  # a colon would begin another address


def _value(mine: Mapping[str, Any], path: str) -> Cell:
    if path not in mine:
        return _text("")
    value = mine[path]
    return _number(value) if number(value) is not None else _text(str(value))


def _several(entries: Sequence[Entry]) -> bool:
    return len({entry.place for entry in entries}) > 1


def _table(id: str, title: str, note: str, columns: list[dict[str, str]], rows: list[list[Cell]]) -> Table:
    return {"id": id, "title": title, "note": note, "columns": columns, "rows": plain(rows)}


def _column(title: str, kind: str = "text") -> dict[str, str]:
    return {"title": title, "kind": kind}


def _text(words: str) -> Cell:
    return {"text": words}


def _group(entry: Entry) -> Cell:
    return {"text": entry.name, "group": entry.name}


def _number(value: float | None, text: str | None = None) -> Cell:
    return {"text": f"{value:g}" if text is None and value is not None else text or "", "value": value}


def _spread(found: Spread | None, *, percent: bool = False) -> Cell:
    if found is None:
        return {"text": "", "value": None}
    scale = 100.0 if percent else 1.0
    text = found.text() if percent else found.short()
    return {"text": text, "value": found.mean * scale, "sd": found.std * scale, "n": found.n}
