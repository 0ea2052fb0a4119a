"""Normalisation inside the model, for inputs that must stay in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class NormalisedInput(nn.Module):
    """A model behind ``(x - mean) / std``, so that attacks can work in plain pixel units.

    The constants are no part of the state dict.

    Example:
        >>> model = NormalisedInput(nn.Identity(), mean=[0.5], std=[0.25])
        >>> model(torch.ones(1, 1, 1, 1)).item()
        2.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the model's output for the normalised input."""
        out: Tensor = self.model((x - self.mean) / self.std)
        return out
