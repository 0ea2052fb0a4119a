"""The paper's "Basic" augmentation in both readings, crop and flip alone or with Cutout, side by side."""

from __future__ import annotations

from lesam.lab import recipes
from lesam.lab.config.optimizer import title
from lesam.lab.paper.accuracy import COMPARED, rows
from lesam.lab.paper.experiment import Variant
from lesam.lab.paper.grid import ACCURACIES, Grid
from lesam.lab.recipes.recipe import Figure

COLUMNS = {"C10 ResNet-18": "cifar10-resnet18", "C100 ResNet-18": "cifar100-resnet18"}
WITH_CUTOUT = {
    f"{title(name)} with Cutout": Variant(method=name, changes=lambda config: {"data.augment": "basic_cutout"})
    for name in COMPARED
}
ROWS = {**rows(*COMPARED), **WITH_CUTOUT}


def _paper(row: str, column: str, quantity: str) -> Figure | None:
    return recipes.figures(COLUMNS[column]).get(ROWS[row].method) if quantity in ACCURACIES else None


EXPERIMENT = Grid(
    name="cutout",
    title="Test accuracy on CIFAR with and without Cutout",
    rows=ROWS,
    columns=COLUMNS,
    paper=_paper,
    remarks=lambda request, cells: [
        'The paper says "Basic" and not whether that includes Cutout, which the code it builds on has: its figures '
        "stand beside both."
    ],
)
