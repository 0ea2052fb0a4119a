"""Robustness of SAM and LE-SAM against PGD attacks."""

from __future__ import annotations

from collections.abc import Mapping

from lesam.lab import recipes
from lesam.lab.attacks.pgd import PRESETS
from lesam.lab.attacks.run import attack_run
from lesam.lab.config.optimizer import title
from lesam.lab.paper.accuracy import rows
from lesam.lab.paper.grid import Grid, Quantity, last_test
from lesam.lab.recipes.recipe import Figure
from lesam.lab.runs.folder import RunFolder

NAMES: Mapping[str, str] = {
    "linf-1": "Test accuracy under L-infinity PGD, eps = 1/255 (%)",
    "l2-32": "Test accuracy under L2 PGD, eps = 32/255 (%)",
}
COLUMNS = {"CIFAR-10": "robust-cifar10", "CIFAR-100": "robust-cifar100"}
METHODS = {title(method): method for method in ("sgd", "sam", "lesam")}


def _attacked(preset: str) -> Quantity:
    def read(run: RunFolder) -> float | None:
        return attack_run(run, PRESETS[preset]).robustness.attacked * 100

    return read


def _paper(row: str, column: str, quantity: str) -> Figure | None:
    for preset, name in NAMES.items():
        figure = recipes.attacked(COLUMNS[column]).get(METHODS[row], {}).get(preset)
        if name == quantity and figure is not None:
            return figure, None
    return None


EXPERIMENT = Grid(
    name="adversarial",
    title="Test accuracy under PGD attacks",
    rows=rows(*METHODS.values()),
    columns=COLUMNS,
    quantities={name: _attacked(preset) for preset, name in NAMES.items()}
    | {"Test accuracy without an attack (%)": last_test},
    paper=_paper,
)
