"""Beyond balanced images of one domain: single-domain generalisation on PACS and VLCS, and long tails."""

from __future__ import annotations

from collections.abc import Mapping

from lesam.lab.paper.experiment import Variant
from lesam.lab.paper.grid import ACCURACIES, Grid, last, last_test
from lesam.lab.recipes import published_longtail
from lesam.lab.recipes.domains import SOURCES
from lesam.lab.recipes.published import DOMAIN_AVERAGES, FIGURES, Figure

AVERAGE = "Avg"
ERM_ROWS: Mapping[str, Variant] = {
    "ERM++": Variant(method="adam"),
    "SAM": Variant(method="sam"),
    "LE-SAM": Variant(method="lesam"),
}
TARGETS = "Mean accuracy on the three other domains (%)"


def _domains(collection: str) -> Grid:
    columns = {source: f"{collection}-{source}" for source in SOURCES[collection]}

    def paper(row: str, column: str, quantity: str) -> Figure | None:
        method = ERM_ROWS[row].method
        if column == AVERAGE:
            return DOMAIN_AVERAGES[collection][method], None
        return FIGURES[columns[column]][method]

    return Grid(
        name=collection,
        title=f"Single-domain generalisation on {collection.upper()} with ERM++, one column for each source",
        rows=ERM_ROWS,
        columns=columns,
        quantities={TARGETS: last_test},
        paper=paper,
        average=AVERAGE,
    )


PACS = _domains("pacs")
VLCS = _domains("vlcs")


def _plain(recipe: str) -> str:
    """The recipe with cross-entropy instead of GLMC."""
    return recipe.replace("-glmc", "-ce")


LONG_TAIL_ROWS: Mapping[str, Variant] = {
    "CE": Variant(method="sgd", recipe=_plain),
    "GLMC": Variant(method="sgd"),
    "GLMC + SAM": Variant(method="sam"),
    "GLMC + LE-SAM": Variant(method="lesam"),
}
LONG_TAIL_COLUMNS = {"IF 100": "cifar100-lt100-glmc", "IF 50": "cifar100-lt50-glmc"}


def _quoted(row: str, column: str, quantity: str) -> Figure | None:
    """The paper's figures; the codes it builds on report the best epoch."""
    if quantity not in ACCURACIES:
        return None
    (found,) = (known for known in published_longtail.ROWS if known.label == row)
    return found.at_100 if column == "IF 100" else found.at_50


LONG_TAIL = Grid(
    name="long-tail",
    title="CIFAR-100-LT at imbalance factors 100 and 50",
    rows=LONG_TAIL_ROWS,
    columns=LONG_TAIL_COLUMNS,
    quantities={
        **ACCURACIES,
        **{
            f"Accuracy on classes with {name} training images, last epoch (%)": last(f"test_{name}_accuracy", 100.0)
            for name in ("many", "medium", "few")
        },
    },
    paper=_quoted,
    remarks=lambda request, cells: [
        "The paper's rows CE and GLMC are quoted there from other work, made in settings of their own.",
        published_longtail.NOTE,
    ],
)
