"""Writes the study's tables into its document: between two comments, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from lesam.lab import console
from lesam.lab.paper.study.records import Record
from lesam.lab.paper.study.tables import headings, tables

BLOCK = re.compile(r"(<!-- table: (?P<heading>.+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def filled(text: str, records: Sequence[Record]) -> str:
    """The document with every table made again; a heading that the study does not have is an error.

    >>> filled("no tables here", [])
    'no tables here'
    """
    made = tables(records)

    def table(match: re.Match[str]) -> str:
        heading = match["heading"]
        if heading not in headings():
            raise ValueError(f"the study has no table {heading!r}; it has {', '.join(headings())}")
        found = console.markdown(made[heading]) if heading in made else "Not run yet.\n"
        return f"{match[1]}\n{found}\n{match[3]}"

    return BLOCK.sub(table, text)


def fill(document: Path, records: Sequence[Record]) -> None:
    """Write all tables of a document again."""
    document.write_text(filled(document.read_text(), records))
