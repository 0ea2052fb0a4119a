"""``lesam compare``: the demonstration, from nothing to a table and a picture."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from lesam.lab.commands.options import Seeds, distinct
from lesam.lab.execution.where import HERE, Where, executor

if TYPE_CHECKING:
    from lesam.lab.execution.jobs import Job


def compare(
    *,
    seeds: Seeds = [10, 11, 12],  # noqa: B006 -- cyclopts reads the default, nobody changes it
    where: Where = HERE,
    scale: Annotated[str, Parameter(help="small, or smoke for a look at the machinery.")] = "small",
    output: Annotated[
        Path, Parameter(name=["--output", "-o"], help="Folder for runs, table, picture and page.")
    ] = Path("lesam-compare"),
) -> None:
    """Train SGD, SAM, LE-SAM and LE-SAM+ on digits with 40 % wrong labels, and show what they learn.

    Each method gets the same number of settings, chosen on a validation split; the winners are trained again with
    fresh seeds. Ends with a table, a picture and a page for the browser, all in the output folder.
    """
    from lesam.lab import console
    from lesam.lab.execution.display import Display
    from lesam.lab.execution.jobs import raise_if_failed
    from lesam.lab.files import write_atomically
    from lesam.lab.report import plots
    from lesam.lab.report.page.content import content
    from lesam.lab.report.page.html import page
    from lesam.lab.runs.folder import RunFolder
    from lesam.lab.runs.repetitions import group
    from lesam.lab.sweeps import compare as comparing

    began, seeds = time.monotonic(), distinct(seeds)
    methods = tuple(comparing.SETTINGS)
    trainer = executor(where, output / "runs", jobs=os.cpu_count() or 1)
    with Display(comparing.run_count(methods, seeds), name=_setting) as display:
        results = comparing.compare(
            trainer,
            runs=output / "runs",
            seeds=seeds,
            scale=scale,
            methods=methods,
            progress=display,
        )
    groups = group(RunFolder(path) for result in results for path in result.runs)
    plots.save(plots.caption(plots.comparison(groups), groups), output / "compare.png")
    table = comparing.cells(results)
    notes = "".join(f"\n{words}\n" for words in comparing.notes(results))
    write_atomically(output / "compare.md", console.markdown(table) + notes)
    chosen = [run for each in groups for run in each.runs]
    made = content(chosen, sources=[output / "runs"], links_from=output)
    write_atomically(output / "report.html", page(made))
    print()
    console.show(table, title="Digits, 40 % of the training labels wrong")
    print(notes, end="")
    print(f"picture: {output / 'compare.png'}   table: {output / 'compare.md'}   {time.monotonic() - began:.0f} s")
    print(f"page, to open in a browser: {(output / 'report.html').resolve().as_uri()}")
    raise_if_failed([], [summary for run in chosen if (summary := run.summary()) is not None])


def _setting(job: Job) -> str:
    """A run by what is tried in it."""
    return f"{job.config.method} {' '.join(job.key[1])} seed {job.config.seed}"
