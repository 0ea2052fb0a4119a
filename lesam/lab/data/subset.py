"""A part of a split to measure on: drawn once, the same for every run, and a smaller part lies in a larger one."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lesam.lab.config.run import RunConfig
from lesam.lab.data.batches import Batches
from lesam.lab.data.folder import FolderSet
from lesam.lab.data.loading import plain_batches
from lesam.lab.data.seeds import generator
from lesam.lab.data.splits import Splits, TensorSet


def drawn(split: TensorSet | FolderSet, samples: int, *words: str | int) -> Tensor:
    """Indices of the first ``samples`` images in a random order that is a function of the words."""
    return torch.randperm(len(split), generator=generator(*words))[:samples]


class Images:
    """Training images of a run in a fixed random order and without augmentation, the same in every pass."""

    def __init__(
        self,
        config: RunConfig,
        splits: Splits,
        *,
        samples: int,
        batch_size: int,
        seed: int,
        device: torch.device | str,
    ) -> None:
        """Draw the images, all of them where there are fewer."""
        chosen = splits.train.subset(drawn(splits.train, samples, "flatness", seed))
        self._batches: Batches = plain_batches(config, chosen, batch_size=batch_size, device=device)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of images and labels."""
        return self._batches.epoch(0)
