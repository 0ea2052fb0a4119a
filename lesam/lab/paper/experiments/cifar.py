"""The main table: test accuracy on CIFAR from scratch."""

from __future__ import annotations

from lesam.lab.paper.accuracy import BACKBONES, COMPARED, accuracy_table, rows

EXPERIMENT = accuracy_table(
    "cifar",
    "Test accuracy on CIFAR-10 and CIFAR-100 from scratch",
    rows(*COMPARED),
    {
        f"{data.upper().replace('CIFAR', 'C')} {label}": f"{data}-{backbone}"
        for data in ("cifar10", "cifar100")
        for label, backbone in BACKBONES.items()
    },
)
