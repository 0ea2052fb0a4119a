"""The price as tables, all from its records: what each method keeps of LE-SAM's gain, and at how many passes."""

from __future__ import annotations

from collections.abc import Sequence

from lesam.lab.paper.study.price import PRICE
from lesam.lab.paper.study.records import Record
from lesam.lab.paper.study.tables import StageTables, Table


def tables(records: Sequence[Record], scale: str = "small") -> dict[str, Table]:
    """All tables by heading; one that nothing has run for has no rows."""
    found: dict[str, Table] = {}
    for stage in PRICE.stages:
        found[f"{stage.recipe}: price, searches"] = StageTables(stage, records, scale, PRICE).searches()
    return {heading: table if len(table) > 1 else [] for heading, table in found.items()}
