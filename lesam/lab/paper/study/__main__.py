"""Keeps the study's records and document: ``python -m lesam.lab.paper.study``.

``collect RUNS RECORDS`` adds the finished runs of ``lesam reproduce study`` to the records, ``tables RECORDS IMAGES
DOCUMENT...`` writes every figure and every table of the documents again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lesam.lab.paper.experiment import Request
from lesam.lab.paper.experiments.study import EXPERIMENT
from lesam.lab.paper.study import document, figures, records
from lesam.lab.paper.study.schedule import export


def main(arguments: list[str]) -> None:
    """Run one of the two commands."""
    match arguments:
        case ["collect", runs, folder]:
            every = export(Request(scale="small", runs=Path(runs)).of(EXPERIMENT), Path(folder))
            print(f"{len(every)} runs in {folder}")
        case ["tables", folder, images, *pages] if pages:
            found = records.read(Path(folder))
            for page in pages:
                document.fill(Path(page), found)
            figures.draw(found, Path(images))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
