"""What a person sees of measurements: bars with the time left on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from lesam.flatness import Progress
from lesam.lab.training.reporter import clock

INTERVAL = 10.0
"""Seconds between two lines about one measurement."""


class Lines:
    """A line when a measurement ends, and one now and then while it lasts."""

    def __init__(self) -> None:
        """No measurement has begun."""
        self._name, self._began = "", 0.0

    def __enter__(self) -> Lines:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say that the last measurement ended, if it did so well."""
        if kind is None:
            self._end()

    def __call__(self, name: str) -> Progress:
        """A measurement begins, and the one before has ended."""
        self._end()
        self._name, self._began = name, time.monotonic()
        told, first = self._began, (0, 0.0)

        def tell(done: int, total: int | None) -> None:
            nonlocal told, first
            now = time.monotonic()
            if not first[1]:  # what came before was done by an earlier process, or was preparation
                first = (done, now)
            if now - told < INTERVAL:
                return
            told = now
            text = f"{name}: {done}" + ("" if total is None else f" of {total}")
            if total is not None and done > first[0]:
                text += f", {clock((now - first[1]) / (done - first[0]) * (total - done))} left"
            print(text, flush=True)

        return tell

    def _end(self) -> None:
        if self._name:
            print(f"{self._name}: done in {time.monotonic() - self._began:.1f} s", flush=True)
        self._name = ""


class Bars:
    """A rich progress bar for each measurement, taken away when the next one begins."""

    def __init__(self) -> None:
        """Prepare the bar; it appears with the first measurement."""
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            transient=True,
        )
        self._task: Any = None

    def __enter__(self) -> Bars:
        """Begin."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        self._bar.stop()

    def __call__(self, name: str) -> Progress:
        """A measurement begins, and the one before has ended."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        task = self._task = self._bar.add_task(name, total=None)
        started = False

        def tell(done: int, total: int | None) -> None:
            nonlocal started
            if not started:  # a measurement that goes on where it stopped has not done all that just now
                self._bar.reset(task, total=total, completed=done)
                started = True
            else:
                self._bar.update(task, completed=done, total=total)

        return tell


def gauges() -> Lines | Bars:
    """Bars on a terminal, plain lines elsewhere."""
    return Bars() if sys.stdout.isatty() else Lines()
