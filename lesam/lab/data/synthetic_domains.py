"""Made-up domains that share their classes and differ in style, for trying single-domain generalisation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lesam.lab.data.domains import SPLIT_SEED, one_source
from lesam.lab.data.seeds import generator
from lesam.lab.data.splits import Splits, TensorSet
from lesam.lab.data.synthetic import patterns

STYLES: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda image: image,
    "faint": lambda image: 0.4 * image - 1.0,
    "tinted": lambda image: image.roll(1, dims=1),
    "outlined": lambda image: (image - image.roll(1, dims=3)).sign(),
}
"""Domains, and what each does to an image around 0: nothing, less contrast and light, other colours, edges alone."""


def synthetic_domains(
    *,
    source: str = "plain",
    image_size: int = 16,
    classes: int = 4,
    domain_size: int = 80,
    noise: float = 0.5,
    validation: float = 0.0,
    split_seed: int = SPLIT_SEED,
    seed: int = 0,
) -> Splits:
    """Make the images of :func:`lesam.lab.data.synthetic.synthetic` in four styles, a pure function of the arguments.

    Args:
        source: The domain to train on, one of ``STYLES``; the others are the targets.
        image_size: Side of the images.
        classes: Number of classes.
        domain_size: Images of each domain.
        noise: Standard deviation of the noise, in units of the pattern's.
        validation: Share of the source to hold out.
        split_seed: Seed of what is held out.
        seed: Seed of patterns and noise.

    Example:
        >>> made = synthetic_domains(source="faint", domain_size=10, validation=0.2)
        >>> len(made.train), len(made.validation), list(made.targets)
        (8, 2, ['plain', 'tinted', 'outlined'])
    """
    if min(image_size, classes, domain_size) < 1:
        raise ValueError(
            f"image_size, classes and domain_size must be >= 1, got {image_size}, {classes} and {domain_size}"
        )
    if noise < 0:
        raise ValueError(f"noise must be >= 0, got {noise}")
    drawn = patterns(image_size, 3, classes, seed)
    labels = torch.arange(domain_size) % classes

    def draw(domain: str, style: Callable[[Tensor], Tensor]) -> TensorSet:
        shape = (domain_size, 3, image_size, image_size)
        white = torch.randn(shape, generator=generator("synthetic domains", domain, seed))
        pixels = 128 + 40 * (style(drawn[labels]) + noise * white)
        return TensorSet(pixels.round().clamp(0, 255).to(torch.uint8), labels)

    domains = {name: draw(name, style) for name, style in STYLES.items()}
    return one_source("synthetic_domains", domains, classes, source, validation, split_seed)
