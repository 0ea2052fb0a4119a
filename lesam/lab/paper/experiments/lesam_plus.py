"""LE-SAM+ beside SAM and LE-SAM, in both forms of its gradient."""

from __future__ import annotations

from lesam.lab.config.optimizer import title
from lesam.lab.paper.accuracy import BACKBONES, accuracy_table, rows
from lesam.lab.paper.experiment import Variant

REFERENCE = f"{title('lesamplus')}, reference form"

EXPERIMENT = accuracy_table(
    "lesam-plus",
    "Test accuracy of SAM, LE-SAM and LE-SAM+ on CIFAR-100",
    rows("sam", "lesam", "lesamplus")
    # The authors' code leaves out the factor 1 + alpha of the paper's own gradient.
    | {REFERENCE: Variant(method="lesamplus", changes=lambda config: {"optimizer.form": "reference"})},
    {label: f"cifar100-{backbone}" for label, backbone in BACKBONES.items()},
)
