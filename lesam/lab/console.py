"""What a person sees: tables, and bars with the time left on a terminal; Markdown and plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[int, int | None], None]
"""Called with what is done and the total, where that is known, as something advances."""

Watch = Callable[[str], Progress]
"""Called with the name of a measurement when it begins; what it returns is called as the measurement advances."""

Rows = Sequence[Sequence[str]]
"""The cells of a table, headings first."""

INTERVAL = 10.0
"""Seconds between two plain lines about one measurement."""

SHORT_BAR = 16
"""Columns of a bar that has words beside it."""


def on_terminal() -> bool:
    """Whether standard output is looked at by a person."""
    return sys.stdout.isatty()


def markdown(rows: Rows) -> str:
    r"""A table as Markdown.

    >>> print(markdown([("", "|g|"), ("SAM", "1.5")]), end="")
    |  | \|g\| |
    | --- | --- |
    | SAM | 1.5 |
    """
    head, *body = rows
    lines = (head, ("---",) * len(head), *body)
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)


def show(rows: Rows, *, title: str = "", notes: str = "", plain: str | None = None) -> None:
    """Print a table: drawn on a terminal, as Markdown elsewhere.

    Args:
        rows: The cells.
        title: Words above it, on a terminal.
        notes: Words below it.
        plain: What to print instead where there is no terminal, for programs that read the output.
    """
    if not on_terminal():
        text = markdown(rows) if plain is None else plain
        print(text + (f"\n{notes}\n" if notes else ""), end="")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, caption=notes or None)
    head, *body = rows
    for name in head:
        table.add_column(name, overflow="fold")  # a number without its last digits would be another number
    for row in body:
        table.add_row(*row)
    Console().print(table)


def clock(seconds: float) -> str:
    """A duration as h:mm:ss.

    >>> clock(3725.0)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class Pace:
    """How long something still takes, from how it went since it was started or resumed."""

    def __init__(self, done: int) -> None:
        """Start the clock; what is ``done`` by now was done earlier."""
        self._first, self._began = done, time.monotonic()

    def left(self, done: int, total: int) -> str | None:
        """The time left as h:mm:ss, None while nothing is known."""
        if done <= self._first:
            return None
        return clock((time.monotonic() - self._began) / (done - self._first) * (total - done))


def bars(*, transient: bool = False, note: bool = False, console: Console | None = None) -> Any:
    """A rich progress display, not yet started: name, bar, count and time left of each task.

    Args:
        transient: Take it away in the end.
        note: Show the field ``note`` of each task in what room the others leave; it is cut, the bar is not.
        console: Where to show it; None for standard output.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    width = SHORT_BAR if note else 40
    return Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=width, table_column=Column(min_width=width)),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        *([TextColumn("{task.fields[note]}", table_column=rest)] if note else []),
        transient=transient,
        expand=note,
        console=console,
    )


class MeasurementLines:
    """A line when a measurement ends, and one now and then while it lasts."""

    def __init__(self) -> None:
        """No measurement has begun."""
        self._name, self._began = "", 0.0

    def __enter__(self) -> MeasurementLines:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say that the last measurement ended, if it ended well."""
        if kind is None:
            self._end()

    def __call__(self, name: str) -> Progress:
        """A measurement begins, and the one before has ended."""
        self._end()
        self._name, self._began = name, time.monotonic()
        printed = self._began
        pace: Pace | None = None

        def advance(done: int, total: int | None) -> None:
            nonlocal printed, pace
            if pace is None:  # what came before was done by an earlier process, or was preparation
                pace = Pace(done)
            if time.monotonic() - printed < INTERVAL:
                return
            printed = time.monotonic()
            text = f"{name}: {done}" + ("" if total is None else f" of {total}")
            if total is not None and (left := pace.left(done, total)) is not None:
                text += f", {left} left"
            print(text, flush=True)

        return advance

    def _end(self) -> None:
        if self._name:
            print(f"{self._name}: done in {time.monotonic() - self._began:.1f} s", flush=True)
        self._name = ""


class MeasurementBars:
    """A bar for each measurement, taken away when the next one begins."""

    def __init__(self) -> None:
        """Prepare the bar; it appears with the first measurement."""
        self._bar = bars(transient=True)
        self._task: Any = None

    def __enter__(self) -> MeasurementBars:
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

        def advance(done: int, total: int | None) -> None:
            nonlocal started
            if not started:  # a measurement that resumes has not done all that just now
                self._bar.reset(task, total=total, completed=done)
                started = True
            else:
                self._bar.update(task, completed=done, total=total)

        return advance


def measurements() -> MeasurementLines | MeasurementBars:
    """Bars on a terminal, plain lines elsewhere; to be used in a ``with`` block as a :data:`Watch`."""
    return MeasurementBars() if on_terminal() else MeasurementLines()
