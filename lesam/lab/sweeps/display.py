"""What a person sees of many runs: a bar over all of them on a terminal, a line for each one that ended elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from lesam.lab.console import bars, on_terminal
from lesam.lab.runs.repetitions import has_diverged
from lesam.lab.sweeps.pool import Event, Job


def run_name(job: Job) -> str:
    """The name of a run's folder."""
    return job.config.folder_name


class Display:
    """Shows the events of a pool; to be used in a ``with`` block."""

    def __init__(self, runs: int | None, name: Callable[[Job], str] = run_name) -> None:
        """Prepare to show a number of runs, None where it is not known, each called as ``name`` says."""
        self._runs, self._name, self._ended = runs, name, 0
        self._bar: Any = bars() if on_terminal() else None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Display:
        """Show the bar over all runs."""
        if self._bar is not None:
            self._bar.start()
            self._whole = self._bar.add_task("all runs", total=self._runs)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the bars as they are."""
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, event: Event) -> None:
        """Show what happened to a run."""
        name = self._name(event.job)
        ended = event.kind in ("done", "failed")
        self._ended += ended
        if self._bar is not None:
            self._draw(event, name, ended)
        if event.kind == "failed" or (ended and self._bar is None):
            of = "" if self._runs is None else f"/{self._runs}"
            self._print(f"[{self._ended}{of}] {name}: {outcome(event)}")

    def _draw(self, event: Event, name: str, ended: bool) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=event.job.config.schedule.epochs)
        if event.row is not None:
            self._bar.update(self._tasks[name], completed=event.row["epoch"] + 1)
        elif ended:
            self._bar.remove_task(self._tasks.pop(name))
        self._bar.update(self._whole, completed=self._ended)

    def _print(self, text: str) -> None:
        if self._bar is None:
            print(text, flush=True)
        else:
            self._bar.console.print(text, highlight=False, soft_wrap=True)


def outcome(event: Event) -> str:
    """How a run ended, in a few words: the accuracy by which it is judged, or its error."""
    if event.summary is None:
        return f"failed: {(event.error.strip().splitlines() or ['no reason given'])[-1]}"
    last = event.summary["last"]
    split = "validation" if "validation_accuracy" in last else "test"
    lost = "diverged, " if has_diverged(event.summary) else ""
    return f"{lost}{split} accuracy {last[f'{split}_accuracy'] * 100:.2f} %"
