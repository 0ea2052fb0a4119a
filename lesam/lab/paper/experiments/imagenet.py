"""Test accuracy on ImageNet from scratch."""

from __future__ import annotations

from lesam.lab.paper.accuracy import COMPARED, accuracy_table, rows

EXPERIMENT = accuracy_table(
    "imagenet",
    "Test accuracy on ImageNet from scratch",
    rows(*COMPARED),
    {"ResNet-50": "imagenet-resnet50", "ResNet-101": "imagenet-resnet101"},
)
