"""Tables of test accuracy: methods in rows, recipes in columns, the paper's figures beside them."""

from __future__ import annotations

from lesam.lab import recipes
from lesam.lab.config.optimizer import methods, title
from lesam.lab.paper.experiment import Variant
from lesam.lab.paper.grid import ACCURACIES, Grid
from lesam.lab.recipes.recipe import Figure

COMPARED = ("sgd", "eigensam", "asam", "esam", "friendlysam", "sam", "lesam")
"""The methods of the paper's main tables, in its order."""

BACKBONES = {"ResNet-18": "resnet18", "WRN-28-10": "wrn", "PyramidNet-110": "pyramid"}


def rows(*names: str) -> dict[str, Variant]:
    """One row for each method, as its recipe has it."""
    return {title(name): Variant(method=name) for name in names}


def accuracy_table(name: str, heading: str, variants: dict[str, Variant], columns: dict[str, str]) -> Grid:
    """An experiment with the test accuracy of every variant on every recipe."""
    titles = {title(method) for method in methods()}

    def paper(row: str, column: str, quantity: str) -> Figure | None:
        plain = variants[row].method if row in titles else ""
        # The paper does not say whether its figures are of the last or of the best epoch.
        return recipes.figures(columns[column]).get(plain) if quantity in ACCURACIES else None

    return Grid(name=name, title=heading, rows=variants, columns=columns, paper=paper)
