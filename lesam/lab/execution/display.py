"""What a person sees of many runs: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from lesam.lab.console import INTERVAL, bars, clock, on_terminal
from lesam.lab.execution.jobs import Event, Job
from lesam.lab.runs.repetitions import has_diverged


def run_name(job: Job) -> str:
    """The name of a run's folder."""
    return job.config.folder_name


class Display:
    """Shows the events of an executor; to be used in a ``with`` block."""

    def __init__(self, runs: int | None, name: Callable[[Job], str] = run_name) -> None:
        """Prepare to show a number of runs, None where it is not known, each called as ``name`` says."""
        self._runs, self._name = runs, name
        self._counts = {"done": 0, "failed": 0, "stopped": 0}
        self._running: dict[str, float] = {}
        """The share of its epochs that each run has behind it."""
        self._began = self._printed = time.monotonic()
        self._trained = 0.0
        """Runs that were trained since then, in parts of runs: what was finished before took no time."""
        self._interrupted = False
        self._bar: Any = bars(note=True) if on_terminal() else None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Display:
        """Show the bar over all runs."""
        if self._bar is not None:
            self._bar.start()
            self._whole = self._bar.add_task("all runs", total=self._runs, note="")
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
        if event.kind in ("started", "epoch"):
            behind = self._running.setdefault(name, 0.0)
            if event.row is not None:
                now = (event.row["epoch"] + 1) / event.job.config.schedule.epochs
                self._trained += max(0.0, now - behind)
                self._running[name] = now
        elif event.kind == "interrupted":
            self._say_interrupted()
        else:
            behind = self._running.pop(name, 1.0)
            self._trained += 1.0 - behind if event.kind == "done" else 0.0
            self._counts[event.kind] += 1
        if self._bar is not None:
            self._draw(event, name)
        if event.kind == "failed" or (event.kind in self._counts and self._bar is None):
            of = "" if self._runs is None else f"/{self._runs}"
            self._print(f"[{sum(self._counts.values())}{of}] {name}: {outcome(event)}")
        elif self._bar is None and not self._interrupted and time.monotonic() - self._printed >= INTERVAL:
            self._print(self.state())

    def state(self) -> str:
        """Runs done, running, failed, and the time left, in one line."""
        ended = sum(self._counts.values())
        parts = [f"{ended} of {self._runs} runs ended" if self._runs is not None else f"{ended} runs ended"]
        parts += [f"{len(self._running)} running"]
        parts += [f"{number} {kind}" for kind, number in self._counts.items() if number and kind != "done"]
        if self._runs is not None and self._trained > 0:
            left = self._runs - ended - sum(self._running.values())
            parts.append(f"{clock((time.monotonic() - self._began) / self._trained * max(0.0, left))} left")
        return ", ".join(parts)

    def _say_interrupted(self) -> None:
        if not self._interrupted:
            self._print("stopping: runs that have begun write a checkpoint, and the same command resumes")
        self._interrupted = True

    def _draw(self, event: Event, name: str) -> None:
        if event.kind in ("started", "epoch"):
            if name not in self._tasks:
                self._tasks[name] = self._bar.add_task(name, total=event.job.config.schedule.epochs, note="")
            if event.row is not None:
                self._bar.update(self._tasks[name], completed=event.row["epoch"] + 1)
        elif event.kind in self._counts and name in self._tasks:
            self._bar.remove_task(self._tasks.pop(name))
        self._bar.update(self._whole, completed=sum(self._counts.values()), note=self.state())

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        if self._bar is None:
            print(text, flush=True)
        else:
            self._bar.console.print(text, highlight=False, soft_wrap=True)


def outcome(event: Event) -> str:
    """How a run ended, in a few words: the accuracy by which it is judged, or its error."""
    if event.kind == "stopped":
        return "stopped, its setting is clearly worse than the best"
    if event.summary is None:
        return f"failed: {(event.error.strip().splitlines() or ['no reason given'])[-1]}"
    last = event.summary["last"]
    split = "validation" if "validation_accuracy" in last else "test"
    lost = "diverged, " if has_diverged(event.summary) else ""
    return f"{lost}{split} accuracy {last[f'{split}_accuracy'] * 100:.2f} %"
