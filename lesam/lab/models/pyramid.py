"""PyramidNet for 32 x 32 images: every block is a little wider than the one before.

Reference:
    Han, Kim and Kim, Deep Pyramidal Residual Networks, CVPR 2017.
"""

from __future__ import annotations

import itertools

import torch.nn.functional as F
from torch import Tensor, nn

from lesam.lab.models.resnet import conv3x3
from lesam.lab.models.wide import fan_out_init


class PyramidBlock(nn.Module):
    """``shortcut(x) + BN(conv(relu(BN(conv(BN(x))))))``: one ReLU, none after the sum.

    The shortcut has no parameters: a 2 x 2 average pool where the stride is 2, then zero channels up to
    the new width.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = conv3x3(outputs, outputs)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.new_channels = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out = self.conv1(self.bn1(x))
        residual: Tensor = self.bn3(self.conv2(F.relu(self.bn2(out))))
        return residual + self.shortcut(x)

    def shortcut(self, x: Tensor) -> Tensor:
        """Return the input at the block's output shape, on the input's own device and dtype."""
        if self.stride != 1:
            x = F.avg_pool2d(x, 2, ceil_mode=True)
        return F.pad(x, (0, 0, 0, 0, 0, self.new_channels))


class PyramidNet(nn.Module):
    """Three stages of ``(depth - 2) / 6`` basic blocks that widen from 16 to ``16 + alpha`` channels."""

    def __init__(self, classes: int, depth: int, alpha: float, in_channels: int = 3) -> None:
        super().__init__()
        per_stage = (depth - 2) // 6
        self.widths = [16 + round(alpha * (k + 1) / (3 * per_stage)) for k in range(3 * per_stage)]
        self.conv1 = conv3x3(in_channels, 16)
        self.bn1 = nn.BatchNorm2d(16)
        halving = (per_stage, 2 * per_stage)
        self.blocks = nn.Sequential(
            *(
                PyramidBlock(inputs, outputs, 2 if k in halving else 1)
                for k, (inputs, outputs) in enumerate(itertools.pairwise([16, *self.widths]))
            )
        )
        self.bn = nn.BatchNorm2d(self.widths[-1])
        self.fc = nn.Linear(self.widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.blocks(self.bn1(self.conv1(x)))
        logits: Tensor = self.fc(F.relu(self.bn(x)).mean((2, 3)))
        return logits


def pyramidnet110(classes: int, *, depth: int = 110, alpha: float = 270, in_channels: int = 3) -> PyramidNet:
    """Build PyramidNet with basic blocks, without ShakeDrop; 28,485,477 parameters for 10 classes.

    Example:
        >>> pyramidnet110(10, depth=8, alpha=30).widths
        [26, 36, 46]
    """
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"a PyramidNet's depth must be 6 n + 2 with n >= 1 (8, 14, ..., 110), got {depth}")
    if alpha < 0:
        raise ValueError(f"a PyramidNet's alpha must be >= 0, got {alpha}")
    model = PyramidNet(classes, depth, alpha, in_channels)
    fan_out_init(model)
    return model
