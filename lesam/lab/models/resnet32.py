"""The ResNets of long-tail studies: three stages and shortcuts without parameters.

Reference:
    He et al., Deep Residual Learning for Image Recognition, CVPR 2016, section 4.2 (option A).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from lesam.lab.models.resnet import conv3x3, stages


class PaddedBlock(nn.Module):
    """``relu(shortcut(x) + BN(conv(relu(BN(conv(x))))))``; a shortcut that changes shape subsamples and adds zeros."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv3x3(outputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        before = (outputs - inputs) // 2
        self.zeros = (before, outputs - inputs - before)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if out.shape != x.shape:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, *self.zeros))
        return F.relu(out + x)


class Features(nn.Module):
    """From images to ``4 * width`` averaged features: stem, then stages of ``width`` x 1, 2, 4 channels."""

    def __init__(self, width: int, blocks: int, in_channels: int) -> None:
        super().__init__()
        if width < 1 or blocks < 1:
            raise ValueError(f"a ResNet needs width >= 1 and blocks >= 1, got {width=} and {blocks=}")
        self.conv1 = conv3x3(in_channels, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.stages = stages(PaddedBlock, width, [width, 2 * width, 4 * width], [blocks] * 3)
        self.size = 4 * width

    def forward(self, x: Tensor) -> Tensor:
        """Return the features."""
        features: Tensor = self.stages(F.relu(self.bn1(self.conv1(x)))).mean((2, 3))
        return features


class ResNet32(nn.Module):
    """The features and one linear classifier."""

    def __init__(self, classes: int, width: int, blocks: int, in_channels: int) -> None:
        super().__init__()
        self.features = Features(width, blocks, in_channels)
        self.fc = nn.Linear(self.features.size, classes)
        self.apply(kaiming_normal)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.fc(self.features(x))
        return logits


def kaiming_normal(module: nn.Module) -> None:
    """Draw the weights of a convolution or linear layer from N(0, 2 / inputs)."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight)


def resnet32(classes: int, *, width: int = 16, blocks: int = 5, in_channels: int = 3) -> ResNet32:
    """Build ResNet-32: 2 + 6 x ``blocks`` layers, 470,004 parameters for 100 classes.

    Example:
        >>> sum(p.numel() for p in resnet32(100).parameters())
        470004
    """
    return ResNet32(classes, width, blocks, in_channels)
