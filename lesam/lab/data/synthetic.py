"""Made-up images that can be learned, for tests and for trying things without any data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lesam.lab.data.seeds import generator
from lesam.lab.data.splits import Splits, TensorSet


def synthetic(
    *,
    image_size: int = 32,
    channels: int = 3,
    classes: int = 10,
    train_size: int = 1000,
    test_size: int = 500,
    noise: float = 1.0,
    seed: int = 0,
) -> Splits:
    """Make images of class-dependent waves under noise, a pure function of the arguments.

    Class ``c`` has a pattern of four random plane waves a channel, of unit variance; an image is
    ``128 + 40 * (pattern_c + noise * n)`` with white ``n``, clipped to 0..255. Labels cycle through the
    classes, so they are balanced.

    Args:
        image_size: Side of the images.
        channels: Colour channels.
        classes: Number of classes.
        train_size: Training images.
        test_size: Test images.
        noise: Standard deviation of the noise, in units of the pattern's.
        seed: Seed of patterns and noise.

    Example:
        >>> made = synthetic(image_size=8, classes=3, train_size=9, test_size=3)
        >>> made.train.images.shape, made.test.labels
        (torch.Size([9, 3, 8, 8]), tensor([0, 1, 2]))
    """
    if min(image_size, channels, classes, train_size, test_size) < 1:
        raise ValueError(
            "image_size, channels, classes, train_size and test_size must be >= 1, "
            f"got {image_size}, {channels}, {classes}, {train_size} and {test_size}"
        )
    if noise < 0:
        raise ValueError(f"noise must be >= 0, got {noise}")
    drawn = patterns(image_size, channels, classes, seed)

    def draw(part: str, count: int) -> TensorSet:
        labels = torch.arange(count) % classes
        shape = (count, channels, image_size, image_size)
        white = torch.randn(shape, generator=generator("synthetic", part, seed))
        pixels = 128 + 40 * (drawn[labels] + noise * white)
        return TensorSet(pixels.round().clamp(0, 255).to(torch.uint8), labels)

    return Splits(draw("train", train_size), draw("test", test_size), classes, "synthetic")


def patterns(size: int, channels: int, classes: int, seed: int) -> Tensor:
    """Sum four plane waves of up to three periods, each class and channel its own, at unit variance."""
    source = generator("synthetic", "patterns", seed)
    waves = (classes, channels, 4, 1, 1)
    along_y, along_x = torch.randint(-3, 4, (2, *waves), generator=source)
    phase = 2 * math.pi * torch.rand(waves, generator=source)
    position = 2 * math.pi * torch.arange(size) / size
    angle = along_y * position.view(-1, 1) + along_x * position.view(1, -1) + phase
    summed: Tensor = angle.sin().sum(2) / math.sqrt(2)
    return summed
