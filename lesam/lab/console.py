"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]]) -> str:
    r"""The lines of a table whose first row holds the headings.

    >>> print(table([("", "|g|"), ("SAM", "1.5")]), end="")
    |  | \|g\| |
    | --- | --- |
    | SAM | 1.5 |
    """
    head, *body = rows
    lines = (head, ("---",) * len(head), *body)
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)
