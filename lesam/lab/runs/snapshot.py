"""A run at one moment: its files are read once, however many tables and figures ask for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lesam.lab.config.run import RunConfig
from lesam.lab.runs.folder import Row, RunFolder

Content = TypeVar("Content")

FILES = ("config.json", "metrics.jsonl", "summary.json", "environment.json")
"""What a snapshot reads; a run in which none of these changed has the same snapshot."""
ROOMS = ("flatness", "attacks", "corruptions")
"""Folders of answers, which change when an answer is added."""


class Snapshot(RunFolder):
    """Reads each file of a run's folder when it is first asked for, and never again."""

    def __init__(self, run: RunFolder) -> None:
        """Name the run; nothing is read yet."""
        super().__init__(run.path)
        self._read: dict[str, Any] = {}

    def config(self) -> RunConfig:
        """The configuration of the run."""
        return self._once("config", super().config)

    def summary(self) -> Row | None:
        """The result of a finished run, None while it is not finished."""
        return self._once("summary", super().summary)

    def metrics(self) -> list[Row]:
        """One row per epoch."""
        return self._once("metrics", super().metrics)

    def environments(self) -> list[Row]:
        """One entry for each time the run was started."""
        return self._once("environments", super().environments)

    def _once(self, name: str, read: Callable[[], Content]) -> Content:
        if name not in self._read:
            self._read[name] = read()
        content: Content = self._read[name]
        return content


def stamp(run: RunFolder) -> tuple[tuple[int, int], ...]:
    """Changes when a file that a snapshot reads changes, or an answer is added; missing ones have a stamp as well."""
    found = []
    for name in (*FILES, *ROOMS):
        try:
            status = (run.path / name).stat()
            found.append((status.st_mtime_ns, status.st_size))
        except OSError:
            found.append((0, -1))
    return tuple(found)
