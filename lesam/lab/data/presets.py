"""Augmentations by name."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch

from lesam.lab.config.suggest import unknown
from lesam.lab.data.augment import Augment, AugmentConfig
from lesam.lab.data.folder import FolderAugment, FolderAugmentConfig

PRESETS: dict[str, AugmentConfig | FolderAugmentConfig] = {
    "none": AugmentConfig(),
    "basic": AugmentConfig(padding=4, flip=True),
    "basic_cutout": AugmentConfig(padding=4, flip=True, cutout=16),
    # Adversarial robustness: inputs stay in [0, 1], the model normalises.
    "reflect": AugmentConfig(padding=4, padding_mode="reflect", flip=True, normalisation="unit"),
    # Fine-tuning a vision transformer on CIFAR.
    "vit": AugmentConfig(flip=True, resize=224, normalisation="imagenet"),
    # Image folders: ImageNet's standard, and single-domain generalisation's.
    "imagenet": FolderAugmentConfig(),
    "domains": FolderAugmentConfig(scale=(0.7, 1.0), jitter=0.3, greyscale=0.1, evaluation_resize=None),
}


def augmentation(
    name: str, *, dtype: torch.dtype = torch.float32, channels_last: bool = False, **changes: Any
) -> Augment | FolderAugment:
    """Make a preset augmentation, with some of its settings changed.

    ``.evaluation()`` of what is returned is what belongs to the test images.

    Args:
        name: One of ``PRESETS``.
        dtype: Type of the network's input.
        channels_last: Give batches in channels-last memory format.
        **changes: Fields of the preset's config, such as ``normalisation="cifar100"``.

    Example:
        >>> augmentation("basic", normalisation="cifar100", padding=2).config.padding
        2
    """
    if name not in PRESETS:
        raise unknown("augmentation", name, PRESETS)
    config = PRESETS[name]
    known = [field.name for field in fields(config)]
    for change in changes:
        if change not in known:
            raise unknown(f"setting of the augmentation {name!r},", change, known)
    config = replace(config, **changes)
    if isinstance(config, FolderAugmentConfig):
        return FolderAugment(config, dtype=dtype, channels_last=channels_last)
    return Augment(config, dtype=dtype, channels_last=channels_last)
