"""Wide ResNets for 32 x 32 images.

Reference:
    Zagoruyko and Komodakis, Wide Residual Networks, BMVC 2016.
"""

from __future__ import annotations

import math

from torch import nn

from lesam.lab.models.resnet import PreActResNet


def fan_out_init(model: nn.Module) -> None:
    """Draw convolutions from ``N(0, 2 / (k * k * out))`` and set biases to 0, in place.

    BatchNorm keeps torch's own start of weight 1 and bias 0.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
            nn.init.normal_(module.weight, 0.0, math.sqrt(2.0 / fan_out))
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


def wrn28_10(classes: int, *, depth: int = 28, width: int = 10, in_channels: int = 3) -> PreActResNet:
    """Build WideResNet-``depth``-``width`` without dropout.

    ``(depth - 4) / 6`` pre-activation blocks a group, groups of 16, 32 and 64 times ``width`` channels
    behind a stem of 16. 36,479,194 parameters for 10 classes at the default size.

    Example:
        >>> sum(p.numel() for p in wrn28_10(10, depth=10, width=1).parameters())
        77850
    """
    if depth < 10 or (depth - 4) % 6:
        raise ValueError(f"a Wide ResNet's depth must be 6 n + 4 with n >= 1 (10, 16, 22, ...), got {depth}")
    if width < 1:
        raise ValueError(f"a Wide ResNet's width must be >= 1, got {width}")
    blocks = (depth - 4) // 6
    widths = [16 * width, 32 * width, 64 * width]
    model = PreActResNet(classes, widths, [blocks] * 3, stem=16, in_channels=in_channels)
    fan_out_init(model)
    return model
