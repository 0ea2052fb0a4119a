"""From a data configuration to the batches of this worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from lightning.fabric import Fabric
from torch import Tensor

from lesam.lab.config import DataConfig, RunConfig
from lesam.lab.data import Augment, Batches, FolderAugment, FolderSet, Splits, TensorSet, augmentation, load

DTYPES = {"64-true": torch.float64}


class Pipeline:
    """The batches of a run, on this worker's device."""

    def __init__(self, config: RunConfig, fabric: Fabric, splits: Splits, *, channels_last: bool) -> None:
        """Cut the splits into batches."""
        self._data, self._fabric = config.data, fabric
        self._augment = _augmentation(config, channels_last)
        self.train = Batches(
            splits.train,
            _share(config.data.batch_size, fabric.world_size),
            self._augment,
            device=fabric.device,
            seed=config.seed,
            drop_last=config.data.drop_last,
            rank=fabric.global_rank,
            world=fabric.world_size,
        )
        self._test = self._in_order(splits.test)
        self._validation = None if splits.validation is None else self._in_order(splits.validation)

    def held_out(self) -> Iterator[tuple[str, Iterable[tuple[Tensor, Tensor]]]]:
        """Name and batches of each split that is evaluated."""
        if self._validation is not None:
            yield "validation", self._validation.epoch(0)
        yield "test", self._test.epoch(0)

    def _in_order(self, split: TensorSet | FolderSet) -> Batches:
        return Batches(
            split,
            self._data.eval_batch_size,
            self._augment.evaluation(),
            device=self._fabric.device,
            seed=0,
            shuffle=False,
            rank=self._fabric.global_rank,
            world=self._fabric.world_size,
        )


def load_splits(data: DataConfig, fabric: Fabric) -> Splits:
    """Load the data; one process of each machine goes first, in case it has to be downloaded."""
    with fabric.rank_zero_first(local=True):
        return load(data.name, data.root, **data.options)


def _augmentation(config: RunConfig, channels_last: bool) -> Augment | FolderAugment:
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


def _share(batch_size: int, world: int) -> int:
    if batch_size % world:
        raise ValueError(
            f"data.batch_size is the batch of all {world} processes together and must be a multiple of {world}, "
            f"got {batch_size}"
        )
    return batch_size // world
