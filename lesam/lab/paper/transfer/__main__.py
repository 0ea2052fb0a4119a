"""Keeps the records and the document of fine-tuning: ``python -m lesam.lab.paper.transfer``.

``collect RUNS RECORDS`` adds the finished runs of ``lesam reproduce fine-tuning`` to the records, ``tables RECORDS
DOCUMENT...`` writes every table of the documents again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lesam.lab.paper.experiment import Request
from lesam.lab.paper.experiments.fine_tuning import EXPERIMENT
from lesam.lab.paper.study import records
from lesam.lab.paper.transfer.contest import export
from lesam.lab.paper.transfer.tables import fill


def main(arguments: list[str]) -> None:
    """Run one of the two commands."""
    match arguments:
        case ["collect", runs, folder]:
            every = export(Request(scale="small", runs=Path(runs)).of(EXPERIMENT), Path(folder))
            print(f"{len(every)} runs in {folder}")
        case ["tables", folder, *pages] if pages:
            found = records.read(Path(folder))
            for page in pages:
                fill(Path(page), found)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
