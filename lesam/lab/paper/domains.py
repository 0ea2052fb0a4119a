"""Tables of single-domain generalisation: one column for each source, its mean accuracy on the other domains."""

from __future__ import annotations

from collections.abc import Mapping

from lesam.lab import recipes
from lesam.lab.config.optimizer import title
from lesam.lab.paper.experiment import Variant
from lesam.lab.paper.grid import Grid, last_test
from lesam.lab.recipes.domains import DOMAIN_AVERAGES, SOURCES
from lesam.lab.recipes.recipe import Figure

AVERAGE = "Avg"
ERM_ROWS: Mapping[str, Variant] = {
    "ERM++": Variant(method="adam"),
    title("sam"): Variant(method="sam"),
    title("lesam"): Variant(method="lesam"),
}
TARGETS = "Mean accuracy on the three other domains (%)"


def domain_table(collection: str) -> Grid:
    """The experiment of a collection of domains."""
    columns = {source: f"{collection}-{source}" for source in SOURCES[collection]}

    def paper(row: str, column: str, quantity: str) -> Figure | None:
        method = ERM_ROWS[row].method
        if column == AVERAGE:
            return DOMAIN_AVERAGES[collection][method], None
        return recipes.figures(columns[column])[method]

    return Grid(
        name=collection,
        title=f"Single-domain generalisation on {collection.upper()} with ERM++, one column for each source",
        rows=ERM_ROWS,
        columns=columns,
        quantities={TARGETS: last_test},
        paper=paper,
        average=AVERAGE,
    )
