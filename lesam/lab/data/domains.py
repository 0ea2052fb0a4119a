"""PACS and VLCS for single-domain generalisation: train on one domain, test on the three others.

The layout is DomainBed's: a folder for each domain, and in it a folder for each class.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from lesam.lab.config.suggest import unknown
from lesam.lab.data.folder import FolderSet
from lesam.lab.data.splits import Splits, TensorSet

Set = TypeVar("Set", TensorSet, FolderSet)

SPLIT_SEED = 42
"""ERM++'s seed of the held-out fifth, whatever the run's seed is."""


@dataclass(frozen=True, kw_only=True)
class Collection:
    """A published collection of domains.

    Attributes:
        folder: Its folder below the root of all data.
        domains: The folder of each domain and the number of images that was published for it.
        classes: The folders in each domain, in label order.
    """

    folder: str
    domains: Mapping[str, tuple[str, int]]
    classes: tuple[str, ...]

    def scan(self, root: Path) -> dict[str, FolderSet]:
        """List the images of all domains; what is not there is named, with the layout it should have."""
        base = root / self.folder
        folders = {name: base / folder for name, (folder, _) in self.domains.items()}
        missing = [
            str(path.relative_to(root))
            for folder in folders.values()
            for path in ([folder / kind for kind in self.classes] if folder.is_dir() else [folder])
            if not path.is_dir()
        ]
        if missing:
            raise FileNotFoundError(f"missing in {root}: {_some(missing)}; {self.layout(root)}")
        surplus = [
            str(path.relative_to(root))
            for folder in folders.values()
            for path in sorted(folder.iterdir())
            if path.is_dir() and path.name not in self.classes
        ]
        if surplus:
            raise ValueError(f"not classes of {self.folder}: {_some(surplus)}; {self.layout(root)}")
        sets = {name: FolderSet.scan(folder, truncated=True) for name, folder in folders.items()}
        self._compare_counts(base, sets)
        return sets

    def layout(self, root: Path) -> str:
        """The folders that are expected, in one sentence."""
        domains = ",".join(folder for folder, _ in self.domains.values())
        return f"expected {root / self.folder}/{{{domains}}}/{{{','.join(self.classes)}}}/IMAGE.jpg"

    def _compare_counts(self, base: Path, sets: Mapping[str, FolderSet]) -> None:
        differing = [
            f"{name} {len(sets[name])} (published: {count})"
            for name, (_, count) in self.domains.items()
            if len(sets[name]) != count
        ]
        if differing:
            warnings.warn(f"{base} does not hold the published number of images: {', '.join(differing)}", stacklevel=5)


PACS = Collection(
    folder="PACS",
    domains={
        "photo": ("photo", 1670),
        "art_painting": ("art_painting", 2048),
        "cartoon": ("cartoon", 2344),
        "sketch": ("sketch", 3929),
    },
    classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
)
"""Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017. In the paper's order: P, A, C, S."""

VLCS = Collection(
    folder="VLCS",
    domains={
        "voc2007": ("VOC2007", 3376),
        "labelme": ("LabelMe", 2656),
        "caltech101": ("Caltech101", 1415),
        "sun09": ("SUN09", 3282),
    },
    classes=("bird", "car", "chair", "dog", "person"),
)
"""Fang et al., Unbiased Metric Learning, ICCV 2013. In the paper's order: V, L, C, S."""


def pacs(root: Path, *, source: str = "photo", validation: float = 0.0, split_seed: int = SPLIT_SEED) -> Splits:
    """Find PACS in ``root/PACS/{photo,art_painting,cartoon,sketch}/CLASS/*``; 9,991 images of 7 classes.

    Args:
        root: The folder that holds ``PACS``.
        source: The domain to train on; the others are the targets.
        validation: Share of the source to hold out.
        split_seed: Seed of what is held out.
    """
    return one_source("pacs", PACS.scan(root), len(PACS.classes), source, validation, split_seed)


def vlcs(root: Path, *, source: str = "voc2007", validation: float = 0.0, split_seed: int = SPLIT_SEED) -> Splits:
    """Find VLCS in ``root/VLCS/{VOC2007,LabelMe,Caltech101,SUN09}/CLASS/*``; 10,729 images of 5 classes.

    The arguments are those of :func:`pacs`.
    """
    return one_source("vlcs", VLCS.scan(root), len(VLCS.classes), source, validation, split_seed)


def one_source(
    name: str, domains: Mapping[str, Set], classes: int, source: str, validation: float, split_seed: int
) -> Splits:
    """Splits that train on one domain and test on each of the others.

    The held-out part is ``int(validation * N)`` images, the first of a shuffle by NumPy's legacy generator, as in
    DomainBed and ERM++. ``test`` is all targets together.

    Args:
        name: Of the data set.
        domains: The images of each domain.
        classes: Number of classes.
        source: The domain to train on.
        validation: Share of the source to hold out.
        split_seed: Seed of what is held out.
    """
    if source not in domains:
        raise unknown(f"domain of {name}", source, domains)
    if not 0.0 <= validation < 1.0:
        raise ValueError(f"validation must lie in [0, 1), got {validation}")
    train = domains[source]
    targets = {domain: images for domain, images in domains.items() if domain != source}
    order = list(range(len(train)))
    np.random.RandomState(split_seed).shuffle(order)
    held_out = int(validation * len(train))
    chosen, kept = (torch.tensor(sorted(part), dtype=torch.int64) for part in (order[:held_out], order[held_out:]))
    tested = list(targets.values())
    return Splits(
        train.subset(kept),
        tested[0].joined(tested[1:]),
        classes,
        name,
        validation=train.subset(chosen) if held_out else None,
        targets=targets,
    )


def _some(paths: list[str]) -> str:
    shown = ", ".join(paths[:5])
    return shown if len(paths) <= 5 else f"{shown} and {len(paths) - 5} more"
