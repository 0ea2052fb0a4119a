"""Small networks to attack, and sizes of what an attack does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

NORMS = ("linf", "l2")


def right(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        return model(images).argmax(1) == labels


def sizes(delta: Tensor, norm: str) -> Tensor:
    flat = delta.flatten(1)
    return flat.abs().amax(1) if norm == "linf" else flat.norm(dim=1)


class Recorder(nn.Module):
    """A linear model that remembers what it was shown."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 2, dtype=torch.float64)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        logits: Tensor = self.linear(x.flatten(1))
        return logits


def binary(size: int) -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    """A linear model of two classes, images, labels, and for each image the direction in which its loss grows."""
    source = torch.Generator().manual_seed(1)
    model = nn.Linear(size, 2, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.randn(2, size, generator=source, dtype=torch.float64))
    images = 0.3 + 0.4 * torch.rand(12, size, generator=source, dtype=torch.float64)
    labels = torch.arange(12) % 2
    return model, images, labels, (model.weight[1 - labels] - model.weight[labels]).detach()
