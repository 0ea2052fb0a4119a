"""From a configuration to batches: augmented for training on this worker, or a split in order and as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lesam.lab.config.run import DataConfig, RunConfig
from lesam.lab.config.suggest import unknown
from lesam.lab.data import Augment, Batches, FolderAugment, FolderSet, Splits, TensorSet, augmentation, load
from lesam.lab.data.seeds import generator

if TYPE_CHECKING:
    from lightning_fabric import Fabric

DTYPES = {"64-true": torch.float64}
SPLITS = ("train", "validation", "test")


class Pipeline:
    """The batches of a run, on this worker's device."""

    def __init__(self, config: RunConfig, fabric: Fabric, splits: Splits, *, channels_last: bool) -> None:
        """Cut the splits into batches."""
        self._data, self._fabric = config.data, fabric
        self._augment = training_augmentation(config, channels_last=channels_last)
        self.train = self.shuffled(splits.train, seed=config.seed, steps=config.task.epoch_steps)
        self.image_shape = image_shape(splits.train, self._augment)
        held_out = {} if splits.validation is None else {"validation": splits.validation}
        tested = {f"test_{name}": split for name, split in splits.targets.items()} or {"test": splits.test}
        self._held_out = {name: self._in_order(split) for name, split in (held_out | tested).items()}

    def shuffled(
        self,
        split: TensorSet | FolderSet,
        *,
        seed: int,
        view: int = 0,
        weights: Tensor | None = None,
        steps: int | None = None,
    ) -> Batches:
        """Training batches of a split: the run's batch size, augmentation and share of the workers.

        With ``steps``, an epoch has that number of batches, drawn with replacement.
        """
        if steps is not None and weights is None:
            weights = torch.ones(len(split))
        return Batches(
            split,
            _share(self._data.batch_size, self._fabric.world_size),
            self._augment,
            device=self._fabric.device,
            seed=seed,
            drop_last=self._data.drop_last,
            rank=self._fabric.global_rank,
            world=self._fabric.world_size,
            weights=weights,
            draws=None if steps is None else steps * self._data.batch_size,
            workers=self._data.workers,
            view=view,
        )

    def held_out(self) -> Iterator[tuple[str, Iterable[tuple[Tensor, Tensor]]]]:
        """Name and batches of each split that is evaluated."""
        for name, batches in self._held_out.items():
            yield name, batches.epoch(0)

    def _in_order(self, split: TensorSet | FolderSet) -> Batches:
        return Batches(
            split,
            self._data.eval_batch_size,
            self._augment.evaluation(),
            device=self._fabric.device,
            seed=0,
            shuffle=False,
            workers=self._data.workers,
            rank=self._fabric.global_rank,
            world=self._fabric.world_size,
        )


def image_shape(split: TensorSet | FolderSet, augment: Augment | FolderAugment) -> tuple[int, int, int]:
    """Channels, height and width of what the network sees."""
    if isinstance(split, TensorSet) and isinstance(augment, Augment):
        one = augment.evaluation()(split.images[:1].cpu(), generator("shape"))
        return one.shape[1], one.shape[2], one.shape[3]
    side = augment.config.size if isinstance(augment, FolderAugment) else 0
    return 3, side, side


def load_splits(data: DataConfig, fabric: Fabric) -> Splits:
    """Load the data; one process of each machine goes first, in case it has to be downloaded."""
    with fabric.rank_zero_first(local=True):
        return load(data.name, data.root, **_options(data))


def training_augmentation(config: RunConfig, *, channels_last: bool = False) -> Augment | FolderAugment:
    """What a run does to its training images; ``.evaluation()`` of it is what happens to the others."""
    data: DataConfig = config.data
    changes = dict(data.augment_options)
    if data.normalisation is not None:
        changes["normalisation"] = data.normalisation
    return augmentation(
        data.augment,
        dtype=DTYPES.get(config.system.precision, torch.float32),
        channels_last=channels_last,
        **changes,
    )


def load_data(config: RunConfig) -> Splits:
    """The data set of a run that a folder describes.

    A run folder may come from somebody else. What it says about where data lies is read from if it is there, and
    nothing is created or downloaded there; else the data set is looked for where this user keeps data.
    """
    data, options = config.data, _options(config.data)
    if data.root is not None and Path(data.root).expanduser().is_dir():
        with contextlib.suppress(FileNotFoundError):
            return load(data.name, data.root, read_only=True, **options)
    return load(data.name, **options)


def _options(data: DataConfig) -> dict[str, Any]:
    """The options of a data set; where it lies is not one of them."""
    if misplaced := {"root", "read_only"}.intersection(data.options):
        raise ValueError(
            f"data.options may not have {', '.join(sorted(misplaced))}; the folder of the data is data.root"
        )
    return dict(data.options)


def choose_split(splits: Splits, name: str) -> TensorSet | FolderSet:
    """One of a data set's splits by its name."""
    if name not in SPLITS:
        raise unknown("split", name, SPLITS)
    split: TensorSet | FolderSet | None = getattr(splits, name)
    if split is None:
        raise ValueError(f"this run holds no {name} images out; choose among train and test")
    return split


def plain_batches(
    config: RunConfig,
    split: TensorSet | FolderSet,
    *,
    batch_size: int,
    device: torch.device | str = "cpu",
    pixels: bool = False,
    channels_last: bool = False,
) -> Batches:
    """A split in order and without augmentation, resized as in training.

    Args:
        config: The run, whose preset says how images are resized and normalised.
        split: The images.
        batch_size: Images a batch.
        device: Where batches are made.
        pixels: Give pixels in [0, 1] instead of what the run normalises them to.
        channels_last: Give batches in channels-last memory format.
    """
    if pixels:
        config = replace(config, data=replace(config.data, normalisation="unit"))
    augment = training_augmentation(config, channels_last=channels_last).evaluation()
    return Batches(split, batch_size, augment, device=device, seed=0, shuffle=False)


def outside_normalisation(config: RunConfig) -> str:
    """Name of the constants by which images are normalised before they reach the run's network."""
    return training_augmentation(config).config.normalisation


def _share(batch_size: int, world: int) -> int:
    if batch_size % world:
        raise ValueError(
            f"data.batch_size is the batch of all {world} processes together and must be a multiple of {world}, "
            f"got {batch_size}"
        )
    return batch_size // world
