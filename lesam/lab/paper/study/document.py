"""Writes the tables of contests into documents: between two comments, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from lesam.lab import console
from lesam.lab.paper.study.tables import Table

BLOCK = re.compile(r"(<!-- table: (?P<heading>.+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def filled(text: str, made: Mapping[str, Table]) -> str:
    """The document with every table made again; a heading that no contest has is an error.

    >>> filled("no tables here", {})
    'no tables here'
    """

    def table(match: re.Match[str]) -> str:
        heading = match["heading"]
        if heading not in made:
            raise ValueError(f"there is no table {heading!r}; there are {', '.join(made)}")
        found = console.markdown(made[heading]) if made[heading] else "Not run yet.\n"
        return f"{match[1]}\n{found}\n{match[3]}"

    return BLOCK.sub(table, text)


def fill(document: Path, made: Mapping[str, Table]) -> None:
    """Write all tables of a document again."""
    document.write_text(filled(document.read_text(), made))
