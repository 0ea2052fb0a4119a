"""Keeps the records and documents of contests: ``python -m lesam.lab.paper.study``.

``collect CONTEST RUNS RESULTS`` adds the finished runs of ``lesam reproduce CONTEST`` to the records in
``RESULTS/CONTEST``, ``time CONTEST RECIPE RUNS RESULTS`` adds what a run of each entry of a stage takes, and ``tables
RESULTS IMAGES DOCUMENT...`` writes every figure and every table of the documents again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lesam.lab.paper.experiment import Request
from lesam.lab.paper.experiments import price, study
from lesam.lab.paper.study import document, records
from lesam.lab.paper.study.schedule import contest_runs, export
from lesam.lab.paper.study.tables import Table
from lesam.lab.paper.study.timing import timed
from lesam.lab.report import plots

CONTESTS = {one.name: one for one in (study.EXPERIMENT, price.EXPERIMENT)}


def collect(name: str, runs: Path, results: Path) -> None:
    """Add what is finished to the records of a contest."""
    one = CONTESTS[name]
    every = export(one.contest, Request(scale="small", runs=runs, records=_known(results)).of(one), results / name)
    print(f"{len(every)} runs in {results / name}")


def measure(name: str, recipe: str, runs: Path, results: Path) -> None:
    """Time a run of every entry of a stage that has repetitions."""
    one, folder = CONTESTS[name], results / name
    request = Request(scale="small", runs=runs, recipes=(recipe,), records=_known(results)).of(one)
    found = timed(contest_runs(one.contest, request))
    records.write(records.merged(records.read(folder), found), folder)


def _known(results: Path) -> Path | None:
    """Where records are, None before the first."""
    return results if any(results.glob("*/*.jsonl")) else None


def made_from(results: Path) -> dict[str, Table]:
    """All tables of all contests by heading."""
    made: dict[str, Table] = {}
    for name, one in CONTESTS.items():
        made |= one.tables(records.read(results / name), "small")
    return made


def main(arguments: list[str]) -> None:
    """Run one of the three commands."""
    match arguments:
        case ["collect", name, runs, results] if name in CONTESTS:
            collect(name, Path(runs), Path(results))
        case ["time", name, recipe, runs, results] if name in CONTESTS:
            measure(name, recipe, Path(runs), Path(results))
        case ["tables", results, images, *pages] if pages:
            made = made_from(Path(results))
            for page in pages:
                document.fill(Path(page), made)
            for name, one in CONTESTS.items():
                for picture, figure in one.figures(records.read(Path(results) / name), "small").items():
                    plots.save(figure, Path(images) / picture)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
