"""``lesam list``: the names one may use."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

Kind = Literal["recipes", "methods", "scales", "models", "data"]


def listing(kind: Annotated[Kind | None, Parameter(help="List only these.")] = None) -> None:
    """List recipes, methods, scales, models and data sets; one name a line when piped."""
    from lesam.lab import data, models, recipes

    names: dict[str, tuple[str, ...]] = {
        "recipes": recipes.NAMES,
        "methods": recipes.METHODS,
        "scales": recipes.SCALES,
        "models": models.NAMES,
        "data": data.NAMES,
    }
    chosen = names if kind is None else {kind: names[kind]}
    if not sys.stdout.isatty():
        print(*(name for group in chosen.values() for name in group), sep="\n")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2))
    for heading, group in chosen.items():
        table.add_row(f"[bold]{heading}", "\n".join(group))
    Console().print(table)
