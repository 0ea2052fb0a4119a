"""A small convolutional network for greyscale digits."""

from __future__ import annotations

import itertools

import torch.nn.functional as F
from torch import Tensor, nn

from lesam.lab.models.resnet import conv3x3


class DigitsCNN(nn.Module):
    """Three conv-BatchNorm-ReLU layers of 1, 2, 2 times ``width`` channels, two poolings, one linear."""

    def __init__(self, classes: int, width: int, in_channels: int) -> None:
        super().__init__()
        widths = [in_channels, width, 2 * width, 2 * width]
        self.convs = nn.ModuleList(conv3x3(a, b) for a, b in itertools.pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for b in widths[1:])
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        for layer, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = F.relu(norm(conv(x)))
            if layer < 2:
                x = F.max_pool2d(x, 2)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def digits_cnn(classes: int, *, width: int = 32, in_channels: int = 1) -> DigitsCNN:
    """Build the digits network; images of 4 x 4 pixels or more (the bundled digits have 8 x 8).

    Example:
        >>> import torch
        >>> digits_cnn(10, width=4)(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """
    if width < 1:
        raise ValueError(f"digits_cnn needs width >= 1, got {width}")
    return DigitsCNN(classes, width, in_channels)
