"""Common corruptions of images: noise, blur, contrast, brightness and coarse pixels, at five severities.

Seven of the corruptions of CIFAR-C with its own constants for small images, those that need no pictures of frost and no
compressor; noise is drawn from a given generator, so that all networks see the same images.

References:
    Hendrycks & Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations, ICLR 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

SEVERITIES = (1, 2, 3, 4, 5)
REACH = 4.0
"""Standard deviations after which a Gaussian filter ends."""


@dataclass(frozen=True, slots=True)
class Corruption:
    """A way to spoil pixels, and how much of it each severity is."""

    spoil: Callable[[Tensor, float, torch.Generator], Tensor]
    amounts: tuple[float, float, float, float, float]

    def __call__(self, images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
        """Spoil a batch.

        Args:
            images: Pixels in [0, 1] of shape (N, C, H, W).
            severity: 1 to 5.
            generator: Source of the noise, on any device.

        Example:
            >>> grey = torch.full((1, 1, 2, 2), 0.5)
            >>> CORRUPTIONS["brightness"](grey, 2, torch.Generator())
            tensor([[[[0.6000, 0.6000],
                      [0.6000, 0.6000]]]])
        """
        if severity not in SEVERITIES:
            raise ValueError(f"severity must be 1 to 5, got {severity}")
        return self.spoil(images, self.amounts[severity - 1], generator).clamp(0, 1)


def _gaussian_noise(images: Tensor, deviation: float, generator: torch.Generator) -> Tensor:
    noise = torch.randn(images.shape, generator=generator, device=generator.device)
    return images + deviation * noise.to(images)


def _shot_noise(images: Tensor, photons: float, generator: torch.Generator) -> Tensor:
    return torch.poisson(images.to(generator.device) * photons, generator=generator).to(images) / photons


def _impulse_noise(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    drawn = torch.rand(images.shape, generator=generator, device=generator.device).to(images.device)
    spoiled = torch.where(drawn < share / 2, torch.ones_like(images), images)
    return torch.where((drawn >= share / 2) & (drawn < share), torch.zeros_like(images), spoiled)


def _gaussian_blur(images: Tensor, deviation: float, generator: torch.Generator) -> Tensor:
    # Borders are repeated, as by the filter that CIFAR-C was made with.
    reach = int(REACH * deviation + 0.5)
    places = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    weights = (-places.square() / (2 * deviation**2)).exp()
    weights = (weights / weights.sum()).expand(images.shape[1], 1, -1)
    padded = functional.pad(images, [reach] * 4, mode="replicate")
    rows = functional.conv2d(padded, weights[:, :, None, :], groups=images.shape[1])
    return functional.conv2d(rows, weights[:, :, :, None], groups=images.shape[1])


def _contrast(images: Tensor, factor: float, generator: torch.Generator) -> Tensor:
    means = images.mean(dim=(2, 3), keepdim=True)
    return means + factor * (images - means)


def _brightness(images: Tensor, more: float, generator: torch.Generator) -> Tensor:
    """Raises the value of hue, saturation and value: the largest channel grows by ``more``, the others with it."""
    value = images.amax(dim=1, keepdim=True)
    raised = (value + more).clamp(max=1)
    return torch.where(value > 0, images * (raised / value.clamp(min=1e-12)), raised.expand_as(images))


def _pixelate(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    side = [max(1, math.floor(size * share)) for size in images.shape[2:]]
    coarse = functional.interpolate(images, side, mode="area")
    return functional.interpolate(coarse, images.shape[2:], mode="nearest")


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian noise": Corruption(_gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot noise": Corruption(_shot_noise, (500, 250, 100, 75, 50)),
    "impulse noise": Corruption(_impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "gaussian blur": Corruption(_gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "contrast": Corruption(_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "brightness": Corruption(_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "pixelate": Corruption(_pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
}
"""By name; amounts are those of CIFAR-C, for images of 32 pixels."""
