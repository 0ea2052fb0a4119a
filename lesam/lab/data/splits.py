"""Sets of labelled images in memory, and the splits a data set comes in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lesam.lab.data.seeds import generator

if TYPE_CHECKING:
    from lesam.lab.data.folder import FolderSet


@dataclass(frozen=True, eq=False)
class TensorSet:
    """Images as one uint8 tensor ``(N, C, H, W)`` and their labels as one int64 tensor ``(N,)``.

    Signals that are no pixels come as float32, in the same shape (``as_is`` is their normalisation).

    Example:
        >>> small = TensorSet(torch.zeros(10, 1, 8, 8, dtype=torch.uint8), torch.arange(10))
        >>> kept, held_out = small.split(0.2, seed=0)
        >>> len(small), len(kept), len(held_out)
        (10, 8, 2)
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        """Refuse tensors of another kind."""
        if self.images.dtype not in (torch.uint8, torch.float32) or self.images.dim() != 4:
            shape = tuple(self.images.shape)
            raise ValueError(
                f"images must be uint8 (or signals float32) of shape (N, C, H, W), got {self.images.dtype} {shape}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"labels must be int64 of shape ({len(self.images)},), "
                f"got {self.labels.dtype} {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def subset(self, indices: Tensor) -> TensorSet:
        """Return the images at the given positions, in that order."""
        return TensorSet(self.images[indices], self.labels[indices])

    def joined(self, others: Sequence[TensorSet]) -> TensorSet:
        """Return these images followed by those of other sets."""
        sets = [self, *others]
        return TensorSet(torch.cat([one.images for one in sets]), torch.cat([one.labels for one in sets]))

    def split(self, fraction: float, seed: int) -> tuple[TensorSet, TensorSet]:
        """Split at random into what is kept and a held-out part of ``round(fraction * len(self))`` images.

        Returns:
            The kept part and the held-out part, each in the original order.
        """
        if not 0.0 <= fraction < 1.0:
            raise ValueError(f"the held-out fraction must lie in [0, 1), got {fraction}")
        order = torch.randperm(len(self), generator=generator("split", seed))
        held_out = round(fraction * len(self))
        return self.subset(order[held_out:].sort().values), self.subset(order[:held_out].sort().values)

    def to(self, device: torch.device | str) -> TensorSet:
        """Return the set with both tensors on a device."""
        return TensorSet(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True, eq=False)
class Splits:
    """A data set: what to train on, what to test on and, where asked for, what to choose settings on."""

    train: TensorSet | FolderSet
    test: TensorSet | FolderSet
    classes: int
    name: str
    validation: TensorSet | FolderSet | None = None
    targets: Mapping[str, TensorSet | FolderSet] = field(default_factory=dict)
    """Parts of the test images that are scored one by one, by name: the domains that were not trained on."""
