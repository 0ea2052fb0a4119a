"""The data sets of the experiments, by name, and how they become batches.

Example:
    >>> digits = load("digits", train_size=500, label_noise=0.2)
    >>> augment = augmentation("none", normalisation="digits")
    >>> batches = Batches(digits.train, 64, augment, device="cpu", seed=0)
    >>> images, labels = next(batches.epoch(0))
    >>> images.shape
    torch.Size([64, 1, 8, 8])
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from lesam.lab.config.suggest import unknown
from lesam.lab.config.text import check_options
from lesam.lab.data.augment import Augment, AugmentConfig
from lesam.lab.data.batches import PADDING_LABEL, Batches
from lesam.lab.data.cifar import cifar10, cifar100
from lesam.lab.data.digits import digits
from lesam.lab.data.domains import pacs, vlcs
from lesam.lab.data.folder import FolderAugment, FolderAugmentConfig, FolderSet, imagefolder
from lesam.lab.data.mnist1d import mnist1d
from lesam.lab.data.normalisation import NORMALISATIONS, Normalisation, normalisation
from lesam.lab.data.presets import PRESETS, augmentation
from lesam.lab.data.sampling import Shaping
from lesam.lab.data.splits import Splits, TensorSet
from lesam.lab.data.synthetic import synthetic
from lesam.lab.data.synthetic_domains import synthetic_domains

__all__ = [
    "NAMES",
    "NORMALISATIONS",
    "PADDING_LABEL",
    "PRESETS",
    "TITLES",
    "Augment",
    "AugmentConfig",
    "Batches",
    "FolderAugment",
    "FolderAugmentConfig",
    "FolderSet",
    "Normalisation",
    "Shaping",
    "Splits",
    "TensorSet",
    "augmentation",
    "default_root",
    "load",
    "normalisation",
    "options",
]

_LOADERS: dict[str, Callable[..., Splits]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "digits": digits,
    "mnist1d": mnist1d,
    "synthetic": synthetic,
    "imagefolder": imagefolder,
    "pacs": pacs,
    "vlcs": vlcs,
    "synthetic_domains": synthetic_domains,
}

# Not shaped: in folders, or with targets that a shape would not reach.
_AS_THEY_ARE = ("imagefolder", "pacs", "vlcs", "synthetic_domains")

NAMES = tuple(_LOADERS)

TITLES: dict[str, str] = {
    "cifar10": "CIFAR-10, 50,000 training and 10,000 test images of 32 x 32; downloaded when absent",
    "cifar100": "CIFAR-100, the same in 100 classes; downloaded when absent",
    "digits": "scikit-learn's digits, 1,797 images of 8 x 8; comes with scikit-learn",
    "mnist1d": "MNIST-1D, signals of 40 values in 10 classes, as many as asked for; generated, needs no files",
    "synthetic": "made-up images of waves under noise; needs no files",
    "imagefolder": "any images in train/CLASS and val/CLASS, such as ImageNet",
    "pacs": "PACS, 9,991 images of 7 classes in 4 domains; folders of files",
    "vlcs": "VLCS, 10,729 images of 5 classes in 4 domains; folders of files",
    "synthetic_domains": "made-up images in four styles; needs no files",
}
"""What each data set is, in a line."""


def default_root() -> Path:
    """Return where data sets lie: ``LESAM_DATA``, else ``lesam/data`` in the user's cache folder."""
    if chosen := os.environ.get("LESAM_DATA"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        cache = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "lesam" / "data"


def options(name: str) -> tuple[str, ...]:
    """Return the names of a data set's options: its own, and how it may be shaped.

    Example:
        >>> options("digits")[:4]
        ('size', 'train_size', 'test_size', 'validation')
    """
    own = _own_options(name)
    shaping = () if name in _AS_THEY_ARE else _SHAPING
    return (*own, *(option for option in shaping if option not in own))


def load(name: str, root: Path | str | None = None, *, read_only: bool = False, **chosen: Any) -> Splits:
    """Load a data set.

    Args:
        name: One of ``NAMES``.
        root: Folder of the files, ``default_root()`` when ``None``; ``digits`` and what is made up need none.
        read_only: Write nothing below the root: no download, no decoded copy.
        **chosen: Options of the data set (``options(name)``); those of ``Shaping`` pick a part of it.

    Example:
        >>> made = load("synthetic", classes=4, image_size=16, train_size=80, validation=0.25)
        >>> len(made.train), len(made.validation), made.classes
        (60, 20, 4)
    """
    known = options(name)
    for option in chosen:
        if option not in known:
            raise unknown(f"option of {name}", option, known)
    check_options("data.options", chosen, (Shaping, _LOADERS[name]))
    own = _own_options(name)
    mine = {option: value for option, value in chosen.items() if option in own}
    # The seed is for both: what is made and what is picked of it.
    shape = {o: value for o, value in chosen.items() if o in _SHAPING and (o not in own or o == "seed")}
    parameters = inspect.signature(_LOADERS[name]).parameters
    if "read_only" in parameters:
        mine["read_only"] = read_only
    if "root" in parameters:
        mine["root"] = default_root() if root is None else Path(root).expanduser()
    return Shaping(**shape).apply(_LOADERS[name](**mine))


_SHAPING = tuple(field.name for field in fields(Shaping))


def _own_options(name: str) -> tuple[str, ...]:
    if name not in _LOADERS:
        raise unknown("data set", name, NAMES)
    return tuple(p for p in inspect.signature(_LOADERS[name]).parameters if p not in ("root", "read_only"))
