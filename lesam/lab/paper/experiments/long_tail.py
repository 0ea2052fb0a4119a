"""Long tails: GLMC with and without a sharpness-aware method, and plain cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping

from lesam.lab.config.optimizer import title
from lesam.lab.paper.experiment import Variant
from lesam.lab.paper.grid import ACCURACIES, Grid, last
from lesam.lab.recipes import longtail
from lesam.lab.recipes.recipe import Figure


def _plain(recipe: str) -> str:
    """The recipe with cross-entropy instead of GLMC."""
    return recipe.replace("-glmc", "-ce")


ROWS: Mapping[str, Variant] = {
    "CE": Variant(method="sgd", recipe=_plain),
    "GLMC": Variant(method="sgd"),
    f"GLMC + {title('sam')}": Variant(method="sam"),
    f"GLMC + {title('lesam')}": Variant(method="lesam"),
}
COLUMNS = {"IF 100": "cifar100-lt100-glmc", "IF 50": "cifar100-lt50-glmc"}


def _quoted(row: str, column: str, quantity: str) -> Figure | None:
    """The paper's figures; the codes it builds on report the best epoch."""
    if quantity not in ACCURACIES:
        return None
    (found,) = (known for known in longtail.ROWS if known.label == row)
    return found.at_100 if column == "IF 100" else found.at_50


EXPERIMENT = Grid(
    name="long-tail",
    title="CIFAR-100-LT at imbalance factors 100 and 50",
    rows=ROWS,
    columns=COLUMNS,
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
        longtail.NOTE,
    ],
)
