"""Test accuracy of fine-tuned vision transformers."""

from __future__ import annotations

from lesam.lab.paper.accuracy import accuracy_table, rows

EXPERIMENT = accuracy_table(
    "vit-finetune",
    "Test accuracy of ViT-B/16 fine-tuned on CIFAR-10 and CIFAR-100",
    rows("sgd", "sam", "lesam"),
    {"CIFAR-10": "vit-cifar10", "CIFAR-100": "vit-cifar100"},
)
