"""A watched folder: its page, made again when a file of a run changes, from what is readable and lies in the folder."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lesam.lab.report.page import html
from lesam.lab.report.page.content import Content, content
from lesam.lab.runs.folder import RunFolder, find_runs
from lesam.lab.runs.snapshot import FILES, ROOMS, Snapshot, stamp
from lesam.lab.sweeps.history import FOLDER, beside

REFRESH = 3.0
"""Seconds between two questions of a page."""
LOOK_AGAIN = 1.0
"""Seconds for which one look at the folder answers everybody."""


@dataclass(frozen=True, slots=True)
class Made:
    """A page, and a tag that is another one when anything in it changed."""

    tag: str
    content: Content
    body: bytes

    def page(self) -> bytes:
        """The whole page, which asks for the rest again by itself."""
        return html.page(self.content, refresh=REFRESH).encode()


class WatchedFolder:
    """Reads runs when they change; what cannot be read is named on the page and read again when it changes."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; it is read when somebody asks."""
        self._folder, self._root = folder, folder.resolve()
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[Any, Snapshot]] = {}
        self._seen: Any = None
        self._looked = 0.0
        self._made: Made | None = None

    def current(self) -> Made:
        """The page of this moment; several browsers at once share one look at the folder."""
        with self._lock:
            if self._made is None or time.monotonic() - self._looked >= LOOK_AGAIN:
                self._made = self._looked_at()
                self._looked = time.monotonic()
            return self._made

    def _looked_at(self) -> Made:
        runs, complaints = self._runs()
        stamps = {run.path: stamp(run) for run in runs}
        searches = self._searches(runs, complaints)
        seen = (stamps, complaints, [(file, _changed(file)) for file in searches])
        if self._made is not None and seen == self._seen:
            return self._made
        self._known = {run.path: self._snapshot(run, stamps[run.path]) for run in runs}
        outside = [run for run in runs if not self._inside(run)]
        shown = [snapshot for run, (_, snapshot) in zip(runs, self._known.values(), strict=True) if run not in outside]
        complaints = [*complaints, *(_leads_out(run.path) for run in outside)]
        try:
            made = content(shown, sources=[self._folder], complaints=complaints, searches=searches)
        except Exception as error:  # a page that says what is wrong instead of none, until the files change
            complaints.append(f"the runs cannot be shown ({type(error).__name__}: {error})")
            made = content([], sources=[self._folder], complaints=complaints)
        body = html.body(made).encode()
        self._seen = seen
        return Made(f'"{hashlib.sha256(body).hexdigest()[:20]}"', made, body)

    def _runs(self) -> tuple[list[RunFolder], list[str]]:
        """The runs below the folder, and a sentence about each link out of it, behind which nothing is looked at."""
        complaints: list[str] = []

        def follow(link: Path) -> bool:
            inside = self._holds(link)
            if not inside:
                complaints.append(_leads_out(link))
            return inside

        try:
            return find_runs([self._folder], follow=follow), complaints
        except (ValueError, OSError) as error:
            return [], [str(error), *complaints]

    def _searches(self, runs: list[RunFolder], complaints: list[str]) -> list[Path]:
        """The histories of searches beside the runs; those behind a link out of the folder are named."""
        folders = {run.path.parent / FOLDER for run in runs}
        complaints += [_leads_out(folder) for folder in sorted(folders) if not self._holds(folder)]
        found = beside(run.path for run in runs if self._holds(run.path.parent / FOLDER))
        complaints += [_leads_out(file) for file in found if not self._holds(file)]
        return [file for file in found if self._holds(file)]

    def _snapshot(self, run: RunFolder, at: Any) -> tuple[Any, Snapshot]:
        known = self._known.get(run.path)
        return known if known is not None and known[0] == at else (at, Snapshot(run))

    def _inside(self, run: RunFolder) -> bool:
        """Whether every file that is read of a run lies in the watched folder, links followed."""
        return all(self._holds(path) for path in self._read_of(run))

    def _holds(self, path: Path) -> bool:
        """Whether a path lies in the watched folder; a link that leads back to itself leads nowhere else."""
        try:
            return path.resolve().is_relative_to(self._root)
        except (OSError, RuntimeError):  # such a link, in the words of different versions of Python
            return True

    @staticmethod
    def _read_of(run: RunFolder) -> Iterator[Path]:
        yield run.path
        yield from (run.path / name for name in FILES)
        for room in ROOMS:
            yield run.path / room
            with suppress(OSError):  # none, or one that cannot be looked into
                yield from (run.path / room).iterdir()


def _changed(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _leads_out(path: Path) -> str:
    return f"{path} leads out of the watched folder and is left out"
