"""``lesam compare``: the demonstration, from nothing to a table and a picture."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from lesam.lab.commands.options import Seeds


def compare(
    *,
    seeds: Seeds = [10, 11, 12],  # noqa: B006 -- cyclopts reads the default, nobody changes it
    jobs: Annotated[int | None, Parameter(help="Processes; by default one for each core.")] = None,
    scale: Annotated[str, Parameter(help="small, or smoke for a look at the machinery.")] = "small",
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="Folder for runs, table and picture.")] = Path(
        "lesam-compare"
    ),
) -> None:
    """Train SGD, SAM, LE-SAM and LE-SAM+ on digits with 40 % wrong labels, and show what they learn.

    Each method gets the same number of settings, chosen on a validation split; the winners are trained again with
    fresh seeds. Ends with a table and a picture, which are also written to the output folder.
    """
    from lesam.lab.report import plots
    from lesam.lab.runs.folder import RunFolder
    from lesam.lab.runs.repetitions import group
    from lesam.lab.sweeps import compare as comparing

    began = time.monotonic()
    methods = tuple(comparing.SETTINGS)
    with _Progress(comparing.run_count(methods, seeds)) as progress:
        results = comparing.compare(
            runs=output / "runs", seeds=seeds, jobs=jobs or os.cpu_count() or 1, scale=scale, hear=progress.hear
        )
    groups = group(RunFolder(path) for result in results for path in result.runs)
    plots.save(plots.comparison(groups), output / "compare.png")
    table = comparing.markdown(results)
    (output / "compare.md").write_text(table)
    _show(results, table)
    print(f"picture: {output / 'compare.png'}   table: {output / 'compare.md'}   {time.monotonic() - began:.0f} s")


class _Progress:
    """A bar over all runs on a terminal, a line for each finished run elsewhere."""

    def __init__(self, runs: int) -> None:
        self._runs, self._done = runs, 0
        self._bar: Any = None
        if sys.stdout.isatty():
            from rich.progress import Progress

            self._bar = Progress()
            self._whole = self._bar.add_task("all runs", total=runs)
            self._tasks: dict[str, Any] = {}

    def __enter__(self) -> _Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def hear(self, event: Any) -> None:
        """Show what a worker says."""
        config = event.job.config
        name = f"{config.method} {' '.join(event.job.key[1])} seed {config.seed}"
        epochs = config.schedule.epochs
        ended = event.kind in ("done", "failed")
        self._done += ended
        if self._bar is None:
            if event.kind == "done":
                accuracy = event.summary["last"]["test_accuracy"] * 100
                print(f"[{self._done}/{self._runs}] {name}: test accuracy {accuracy:.2f} %", flush=True)
            return
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=epochs)
        if event.kind == "epoch":
            self._bar.update(self._tasks[name], completed=event.row["epoch"] + 1)
        elif ended:
            self._bar.remove_task(self._tasks.pop(name))
        self._bar.update(self._whole, completed=self._done)


def _show(results: list[Any], table: str) -> None:
    if not sys.stdout.isatty():
        print("\n" + table)
        return
    from rich.console import Console
    from rich.table import Table

    from lesam.lab.sweeps import compare as comparing

    shown = Table(title="Digits, 40 % of the training labels wrong")
    head, *rows = comparing.cells(results)
    for name in head:
        shown.add_column(name)
    for row in rows:
        shown.add_row(*row)
    Console().print(shown)
