"""Tables of test accuracy: CIFAR and ImageNet from scratch, fine-tuned transformers, LE-SAM+."""

from __future__ import annotations

from lesam.lab.config.optimizer import TITLES
from lesam.lab.paper.experiment import Variant
from lesam.lab.paper.grid import ACCURACIES, Grid
from lesam.lab.recipes.published import FIGURES, Figure

COMPARED = ("sgd", "eigensam", "asam", "esam", "friendlysam", "sam", "lesam")
"""The methods of the paper's main tables, in its order."""

BACKBONES = {"ResNet-18": "resnet18", "WRN-28-10": "wrn", "PyramidNet-110": "pyramid"}


def rows(*methods: str) -> dict[str, Variant]:
    """One row for each method, as its recipe has it."""
    return {TITLES[method]: Variant(method=method) for method in methods}


def _table(name: str, title: str, variants: dict[str, Variant], columns: dict[str, str]) -> Grid:
    def paper(row: str, column: str, quantity: str) -> Figure | None:
        plain = variants[row].method if row in TITLES.values() else ""
        # The paper does not say whether its figures are of the last or of the best epoch.
        return FIGURES[columns[column]].get(plain) if quantity in ACCURACIES else None

    return Grid(name=name, title=title, rows=variants, columns=columns, paper=paper)


CIFAR = _table(
    "cifar",
    "Test accuracy on CIFAR-10 and CIFAR-100 from scratch",
    rows(*COMPARED),
    {
        f"{data.upper().replace('CIFAR', 'C')} {label}": f"{data}-{backbone}"
        for data in ("cifar10", "cifar100")
        for label, backbone in BACKBONES.items()
    },
)

IMAGENET = _table(
    "imagenet",
    "Test accuracy on ImageNet from scratch",
    rows(*COMPARED),
    {"ResNet-50": "imagenet-resnet50", "ResNet-101": "imagenet-resnet101"},
)

VIT = _table(
    "vit-finetune",
    "Test accuracy of ViT-B/16 fine-tuned on CIFAR-10 and CIFAR-100",
    rows("sgd", "sam", "lesam"),
    {"CIFAR-10": "vit-cifar10", "CIFAR-100": "vit-cifar100"},
)

LESAM_PLUS = _table(
    "lesam-plus",
    "Test accuracy of SAM, LE-SAM and LE-SAM+ on CIFAR-100",
    rows("sam", "lesam", "lesamplus")
    # The authors' code leaves out the factor 1 + alpha of the paper's own gradient.
    | {"LE-SAM+, reference form": Variant(method="lesamplus", changes=lambda config: ["optimizer.form=reference"])},
    {label: f"cifar100-{backbone}" for label, backbone in BACKBONES.items()},
)
