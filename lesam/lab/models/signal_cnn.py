"""A small convolutional network for signals."""

from __future__ import annotations

import itertools

from torch import Tensor, nn


class SignalCNN(nn.Module):
    """Three strided conv-ReLU layers along the signal, one linear layer on what is left of it."""

    def __init__(self, classes: int, width: int, length: int) -> None:
        super().__init__()
        widths = [1, width, width, width]
        kernels = (5, 3, 3)
        self.convs = nn.ModuleList(
            nn.Conv1d(a, b, kernel, stride=2, padding=1)
            for (a, b), kernel in zip(itertools.pairwise(widths), kernels, strict=True)
        )
        for kernel in kernels:
            length = (length + 2 - kernel) // 2 + 1
        if length < 1:
            raise ValueError("signal_cnn needs signals of 9 values or more")
        self.fc = nn.Linear(width * length, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = x.flatten(2)
        for conv in self.convs:
            x = conv(x).relu()
        logits: Tensor = self.fc(x.flatten(1))
        return logits


def signal_cnn(classes: int, *, width: int = 25, length: int = 40) -> SignalCNN:
    """Build the network of the MNIST-1D paper: kernels of 5, 3 and 3 values with stride 2, 25 channels each.

    Example:
        >>> import torch
        >>> signal_cnn(10)(torch.zeros(2, 1, 1, 40)).shape
        torch.Size([2, 10])
    """
    if width < 1:
        raise ValueError(f"signal_cnn needs width >= 1, got {width}")
    return SignalCNN(classes, width, length)
