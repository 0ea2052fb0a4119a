"""ResNets for 32 x 32 images: the plain form and the pre-activation form.

References:
    He et al., Deep Residual Learning for Image Recognition, CVPR 2016;
    He et al., Identity Mappings in Deep Residual Networks, ECCV 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Make the 3 x 3 convolution without bias that all networks here are built from."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """``relu(shortcut(x) + BN(conv(relu(BN(conv(x))))))``, projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv3x3(outputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class PreActBlock(nn.Module):
    """``shortcut + conv(relu(BN(conv(a))))`` with ``a = relu(BN(x))``.

    A projection shortcut reads ``a``, which both branches then share; an identity shortcut reads ``x``.
    Without BatchNorm on the projection, this is also the block of Wide ResNets.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = conv3x3(outputs, outputs)
        changes_shape = stride != 1 or inputs != outputs
        self.project = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False) if changes_shape else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        a = F.relu(self.bn1(x))
        shortcut = x if self.project is None else self.project(a)
        out: Tensor = shortcut + self.conv2(F.relu(self.bn2(self.conv1(a))))
        return out


def stages(
    block: Callable[[int, int, int], nn.Module], inputs: int, widths: Sequence[int], blocks: Sequence[int]
) -> nn.Sequential:
    """Chain stages of blocks; every stage but the first halves the resolution in its first block."""
    layers: list[nn.Module] = []
    for number, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        stage: list[nn.Module] = []
        for position in range(count):
            stage.append(block(inputs, width, 2 if number > 0 and position == 0 else 1))
            inputs = width
        layers.append(nn.Sequential(*stage))
    return nn.Sequential(*layers)


class ResNet(nn.Module):
    """A ResNet with the CIFAR stem: 3 x 3, stride 1, no pooling before the stages."""

    def __init__(self, classes: int, widths: Sequence[int], blocks: Sequence[int], in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, widths[0])
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.stages = stages(BasicBlock, widths[0], widths, blocks)
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.stages(F.relu(self.bn1(self.conv1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class PreActResNet(nn.Module):
    """A pre-activation ResNet with the CIFAR stem and a last BatchNorm-ReLU before pooling."""

    def __init__(
        self, classes: int, widths: Sequence[int], blocks: Sequence[int], stem: int, in_channels: int = 3
    ) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, stem)
        self.stages = stages(PreActBlock, stem, widths, blocks)
        self.bn = nn.BatchNorm2d(widths[-1])
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = F.relu(self.bn(self.stages(self.conv1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def resnet18(classes: int, *, width: int = 64, in_channels: int = 3) -> ResNet:
    """Build the ResNet-18 of CIFAR studies: stages of two blocks, ``width`` x 1, 2, 4, 8 channels.

    Initialisation is torch's default. 11,173,962 parameters for 10 classes.

    Example:
        >>> sum(p.numel() for p in resnet18(10).parameters())
        11173962
    """
    return ResNet(classes, [width, 2 * width, 4 * width, 8 * width], [2, 2, 2, 2], in_channels)


def preact_resnet18(classes: int, *, width: int = 64, in_channels: int = 3) -> PreActResNet:
    """Build the pre-activation ResNet-18 of robustness studies, 11,172,170 parameters for 10 classes."""
    widths = [width, 2 * width, 4 * width, 8 * width]
    return PreActResNet(classes, widths, [2, 2, 2, 2], stem=width, in_channels=in_channels)


def small_resnet(classes: int, *, width: int = 16, blocks: int = 1, in_channels: int = 3) -> ResNet:
    """Build a narrow ResNet for studies on a CPU: three stages of ``blocks`` blocks, ``width`` x 1, 2, 4."""
    if width < 1 or blocks < 1:
        raise ValueError(f"small_resnet needs width >= 1 and blocks >= 1, got {width=} and {blocks=}")
    return ResNet(classes, [width, 2 * width, 4 * width], [blocks] * 3, in_channels)
