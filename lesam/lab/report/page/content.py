"""Everything the page shows as one record of plain values: groups, sections of figures and tables, what is missing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lesam import __version__
from lesam.lab.report.page import charts, flatness_charts, tables
from lesam.lab.report.page.comparison import contests
from lesam.lab.report.page.entries import Entry, read
from lesam.lab.report.page.headline import headline
from lesam.lab.report.page.kept import collect
from lesam.lab.report.page.missing import missing
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.repetitions import settings
from lesam.lab.sweeps import history

Content = dict[str, Any]


def content(
    runs: Iterable[RunFolder],
    *,
    sources: Sequence[Path],
    links_from: Path | None = None,
    complaints: Sequence[str] = (),
    searches: Sequence[Path] = (),
) -> Content:
    """Read the runs and make the record.

    Args:
        runs: Folders to show; one that cannot be read is named on the page.
        sources: The paths that were asked for, as commands name them.
        links_from: Folder of the page, from which run folders are linked; None for no links.
        complaints: What is known to be wrong already; the page's own list begins with it.
        searches: Files with histories of searches.
    """
    every = list(runs)
    try:
        return _record(every, sources, links_from, complaints, searches)
    except Exception:  # damage of a kind that nobody has thought of must not take the other runs away
        damaged = {run.path: words for run in every if (words := _damage(run, sources, links_from))}
        if not damaged:
            raise
        good = [run for run in every if run.path not in damaged]
        return _record(good, sources, links_from, [*complaints, *damaged.values()], searches)


def _damage(run: RunFolder, sources: Sequence[Path], links_from: Path | None) -> str:
    """Why a run cannot be shown, even alone; empty where it can."""
    try:
        _record([run], sources, links_from, ())
    except Exception as error:
        return f"{run.path} cannot be shown ({type(error).__name__}: {error})"
    return ""


def _record(
    runs: Iterable[RunFolder],
    sources: Sequence[Path],
    links_from: Path | None,
    complaints: Sequence[str],
    searches: Sequence[Path] = (),
) -> Content:
    entries, unread = read(runs)
    searched, unread_searches = _searches(searches)
    kept = collect(entries)
    contested = contests(entries)
    drawn = charts.drawn(entries)
    pairs, configured, measured = (
        tables.differences(contested),
        tables.configuration(entries),
        tables.flatness(entries, kept),
    )
    sections = [
        _section("summary", "Summary", charts.front(drawn), [tables.summary(entries, kept)]),
        _section("differences", "Who beats whom", [], [pairs]),
        _section("curves", "Accuracy and loss", charts.curves(drawn, charts.ACCURACY_AND_LOSS)),
        _section("climb", "Radius and budget", charts.curves(drawn, charts.CLIMB)),
        _section(
            "flatness",
            "Flatness",
            [
                *flatness_charts.spectra(drawn, kept),
                *flatness_charts.layers(drawn, kept),
                *flatness_charts.low_pass(drawn, kept),
                *charts.tracked(drawn),
            ],
            [measured],
        ),
        _section("landscapes", "Loss landscapes", flatness_charts.landscapes(drawn, kept)),
        _section(
            "attacks", "Robustness", [*flatness_charts.attacks(drawn, kept), *flatness_charts.corruptions(drawn, kept)]
        ),
        _section("configuration", "Configuration", [], [configured]),
        _section("search", "Search", [], searched),
        _section("runs", "Runs and environment", [], [tables.runs(entries, links_from=links_from)]),
    ]
    made = {
        "title": _title(entries, sources),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "headline": headline(entries, contested),
        "places": list(dict.fromkeys(entry.place for entry in entries)),
        "groups": [
            {
                "key": _key(entry),
                "name": entry.name,
                "place": entry.place,
                "colour": entry.look.colour,
                "dash": entry.look.dash,
                "drawn": entry in drawn,
            }
            for entry in entries
        ],
        "left_out": len(entries) - len(drawn),
        "sections": [section for section in sections if section["charts"] or section["tables"]],
        "missing": missing(entries, kept, sources),
        "problems": [*complaints, *unread, *unread_searches, *kept.notes],
    }
    return {name: _encodable(value) for name, value in made.items()}


def _section(
    id: str, title: str, charts: list[dict[str, Any]], tables: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    return {"id": id, "title": title, "charts": charts, "tables": [table for table in tables if table["rows"]]}


def _searches(files: Sequence[Path]) -> tuple[list[tables.Table], list[str]]:
    """A table for each search, and a sentence about every file that cannot be shown."""
    found: list[tables.Table] = []
    complaints: list[str] = []
    for file in files:
        try:
            found.append(tables.search(history.read(file), f"search-{len(found)}"))
        except (ValueError, TypeError, LookupError, AttributeError, OSError) as error:
            complaints.append(f"the search {file} cannot be shown ({type(error).__name__}: {error})")
    return found, complaints


def _key(entry: Entry) -> str:
    """The same for a group whatever it is called: its name says what tells it from the others at hand."""
    config = entry.group.config
    asked = (config.recipe, config.scale, sorted(settings(config).items(), key=lambda item: item[0]))
    return hashlib.sha256(repr(asked).encode()).hexdigest()[:16]


def _encodable(value: Any) -> Any:
    r"""The same without what UTF-8 cannot write: bytes of file names in no known encoding, halves of a character.

    >>> print(ascii(_encodable(["run\udcff"])))
    ['run\ufffd']
    """
    if isinstance(value, str):
        return value if value.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, dict):
        return {_encodable(name): _encodable(item) for name, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def _title(entries: Sequence[Entry], sources: Sequence[Path]) -> str:
    places = list(dict.fromkeys(entry.place for entry in entries))
    runs = sum(len(entry.members) for entry in entries)
    where = places[0] if len(places) == 1 else f"{len(places)} settings" if places else ", ".join(map(str, sources))
    return f"{where}: {runs} run{'' if runs == 1 else 's'}"
