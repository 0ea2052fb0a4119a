"""Batches whose content is a function of (seed, epoch, position, rank) and of nothing else."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lesam.lab.data.augment import Augment
from lesam.lab.data.folder import FolderAugment, FolderSet
from lesam.lab.data.seeds import generator, mix
from lesam.lab.data.splits import TensorSet

# The label of an image that only fills a part up to equal length; torch's losses ignore it by default.
PADDING_LABEL = -100

LOADER_WORKERS = "LESAM_LOADER_WORKERS"
"""Environment variable: processes that read image files for a run, by default one a core and at most eight."""


class Batches:
    """A split, cut into batches for one rank, on its device.

    A run that stops can resume at any batch bit for bit: ``epoch(e, start=b)`` gives exactly what
    ``epoch(e)`` gives from batch ``b`` on, and never touches torch's global random state.

    With several ranks, each reads its own part of one common permutation; all parts have equal length and
    no image is in two. When the images do not divide evenly, shuffled (training) parts leave out fewer than
    ``world`` images an epoch, others each time; parts in order (evaluation) leave out none and are filled
    up with images labelled ``PADDING_LABEL``, which must not be counted.

    Args:
        split: Images in memory or in folders.
        batch_size: Images a batch on this rank.
        augment: Matching augmentation, see ``augmentation``.
        device: Where batches are made. Images in memory are moved there once and stay.
        seed: Seed of order and augmentation.
        shuffle: A new order every epoch, or always the split's own.
        drop_last: Leave out a last batch that is not full.
        rank: Which part to read.
        world: Number of parts.
        workers: Processes that decode image files; ``None`` takes one a processor, at most 8. Images in
            memory need none.
        weights: Draw images at random with replacement, in proportion to these weights, one an image; ``None``
            goes through all images once an epoch.
        draws: Images an epoch over all ranks, when they are drawn with replacement; ``None`` takes as many as
            the split has.
        view: Which augmentation: each number is another one of the same images in the same order.

    Example:
        >>> from lesam.lab.data import augmentation, load
        >>> split = load("synthetic", train_size=100).train
        >>> batches = Batches(split, 32, augmentation("basic"), device="cpu", seed=0)
        >>> len(batches), [len(labels) for images, labels in batches.epoch(0)]
        (4, [32, 32, 32, 4])
    """

    def __init__(
        self,
        split: TensorSet | FolderSet,
        batch_size: int,
        augment: Augment | FolderAugment,
        *,
        device: torch.device | str,
        seed: int,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world: int = 1,
        workers: int | None = None,
        weights: Tensor | None = None,
        draws: int | None = None,
        view: int = 0,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be >= 1, got {batch_size}")
        if not 0 <= rank < world:
            raise ValueError(f"rank must lie in 0..world-1, got {rank=} and {world=}")
        if weights is not None and (not shuffle or weights.shape != (len(split),)):
            raise ValueError(f"weights need shuffle=True and one number for each of {len(split)} images")
        if draws is not None and (weights is None or draws < 1):
            raise ValueError(f"draws is the number of images drawn by weights and must be >= 1, got {draws}")
        self.weights = weights
        self.size = len(split) if draws is None else draws
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.rank = rank
        self.world = world
        self.part_size = self.size // world if shuffle else -(-self.size // world)
        self._length = self.part_size // batch_size if drop_last else -(-self.part_size // batch_size)
        if self._length == 0:
            raise ValueError(f"{self.size} images on {world} ranks make no batch of {batch_size} with {drop_last=}")
        augment_seed = mix("view", seed, view) if view else seed
        drawn = weights is not None
        self._reader = _reader(
            split, augment, torch.device(device), augment_seed, rank, workers, drawn=drawn, persistent=shuffle
        )

    def __len__(self) -> int:
        """Return the number of batches an epoch on this rank."""
        return self._length

    def order(self, epoch: int) -> Tensor:
        """Return the positions this rank reads in an epoch; -1 where its part is filled up."""
        source = generator("order", self.seed, epoch)
        if self.weights is not None:
            order = torch.multinomial(self.weights, self.size, replacement=True, generator=source)
        elif self.shuffle:
            order = torch.randperm(self.size, generator=source)
        else:
            order = torch.arange(self.part_size * self.world)
            order[self.size :] = -1
        return order[self.rank :: self.world][: self.part_size]

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images and labels of an epoch's batches, from batch ``start`` on."""
        if epoch < 0 or not 0 <= start <= len(self):
            raise ValueError(f"epoch must be >= 0 and start in 0..{len(self)}, got {epoch=} and {start=}")
        positions = torch.split(self.order(epoch), self.batch_size)[start : len(self)]
        return self._reader.read(positions, epoch, start)


class _Reader(Protocol):
    """Makes the batches at given positions of the split."""

    def read(self, positions: tuple[Tensor, ...], epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]: ...


def _reader(
    split: TensorSet | FolderSet,
    augment: Augment | FolderAugment,
    device: torch.device,
    seed: int,
    rank: int,
    workers: int | None,
    *,
    drawn: bool,
    persistent: bool,
) -> _Reader:
    if isinstance(split, TensorSet) and isinstance(augment, Augment):
        return _TensorReader(split.to(device), augment, device, seed, rank)
    if isinstance(split, FolderSet) and isinstance(augment, FolderAugment):
        if workers is None:
            workers = int(os.environ.get(LOADER_WORKERS) or min(8, os.cpu_count() or 1))
            if multiprocessing.current_process().daemon:  # which may not have children of its own
                workers = 0
        drawn_by = rank if drawn else None
        return _FolderReader(split, augment, device, seed, workers, drawn_by=drawn_by, persistent=persistent)
    raise ValueError(
        f"a {type(split).__name__} cannot be read with {type(augment).__name__}: images in memory take the "
        "augmentations none, basic, basic_cutout, reflect and vit, image folders imagenet and domains"
    )


class _TensorReader:
    def __init__(self, split: TensorSet, augment: Augment, device: torch.device, seed: int, rank: int) -> None:
        self.split, self.augment, self.device, self.seed, self.rank = split, augment, device, seed, rank

    def read(self, positions: tuple[Tensor, ...], epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        if not positions:
            return
        # One transfer an epoch instead of one a batch.
        sizes = [len(chosen) for chosen in positions]
        on_device = torch.split(torch.cat(positions).to(self.device), sizes)
        for number, chosen in enumerate(on_device, start):
            source = generator("augment", self.seed, epoch, number, self.rank, device=self.device)
            row = chosen.clamp(min=0)
            images = self.augment(self.split.images.index_select(0, row), source)
            labels = self.split.labels.index_select(0, row).masked_fill_(chosen < 0, PADDING_LABEL)
            yield images, labels


class _FolderReader:
    def __init__(
        self,
        split: FolderSet,
        augment: FolderAugment,
        device: torch.device,
        seed: int,
        workers: int,
        drawn_by: int | None,
        persistent: bool,
    ) -> None:
        self.split, self.augment, self.device, self.seed, self.workers = split, augment, device, seed, workers
        self.drawn_by = drawn_by
        # Training reads epoch after epoch, and keeps its processes; an evaluation comes now and then.
        self._agenda: list[list[tuple[int, int]]] = []
        self._kept = self._loader(self._agenda, workers, persistent=True) if persistent and workers else None
        self._reading = False

    def read(self, positions: tuple[Tensor, ...], epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        agenda = [self._items(chosen.tolist(), epoch, number) for number, chosen in enumerate(positions, start)]
        if self._kept is None or self._reading:  # one loader cannot read two epochs at a time
            yield from self._on_device(self._loader(agenda, min(self.workers, len(positions)), persistent=False))
            return
        self._agenda[:] = agenda
        self._reading = True
        try:
            yield from self._on_device(self._kept)
        finally:
            self._reading = False

    def _loader(
        self, agenda: list[list[tuple[int, int]]], workers: int, *, persistent: bool
    ) -> DataLoader[tuple[Tensor, int]]:
        return DataLoader(
            _Items(self.split, self.augment),
            batch_sampler=agenda,
            num_workers=workers,
            persistent_workers=persistent,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # else the loader would draw from the global one
        )

    def _on_device(self, loader: DataLoader[tuple[Tensor, int]]) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in loader:
            moved = images.to(self.device, non_blocking=True)
            yield self.augment.on_device(moved), labels.to(self.device, non_blocking=True)

    def _items(self, positions: list[int], epoch: int, number: int) -> list[tuple[int, int]]:
        """The positions of a batch, each with a seed of its own, so that workers change nothing.

        The seed is the image's, so that ranks change nothing either; but an image that is drawn with replacement may
        come several times in an epoch, and differently each time: then it is the place's in the batches of the rank.
        """
        if self.drawn_by is None:
            return [(position, mix("item", self.seed, epoch, max(position, 0))) for position in positions]
        place = ("drawn", self.seed, epoch, number, self.drawn_by)
        return [(position, mix(*place, order)) for order, position in enumerate(positions)]


class _Items(Dataset[tuple[Tensor, int]]):
    """Transformed images by position and seed."""

    def __init__(self, split: FolderSet, augment: FolderAugment) -> None:
        self.split, self.augment = split, augment

    def __getitem__(self, item: tuple[int, int]) -> tuple[Tensor, int]:
        position, seed = item
        row = max(position, 0)
        image = self.augment.on_worker(self.split.decode(row), seed)
        return image, PADDING_LABEL if position < 0 else int(self.split.labels[row])
