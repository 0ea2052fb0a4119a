"""Fully connected networks."""

from __future__ import annotations

import itertools

from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers with ReLU between them, on inputs of any shape laid out in a row."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        logits: Tensor = self.layers[-1](x)
        return logits


def mlp(classes: int, *, inputs: int = 40, width: int = 256, depth: int = 3) -> MLP:
    """Build a network of ``depth`` linear layers, the inner ones ``width`` wide; torch's default initialisation.

    Example:
        >>> import torch
        >>> mlp(10)(torch.zeros(2, 1, 1, 40)).shape
        torch.Size([2, 10])
    """
    if min(inputs, width, depth) < 1:
        raise ValueError(f"mlp needs inputs, width and depth >= 1, got {inputs=}, {width=} and {depth=}")
    return MLP([inputs, *[width] * (depth - 1), classes])
