"""What flatness is measured on: a kept checkpoint of a run, and a fixed part of its training images.

The loss is plain cross-entropy on images without augmentation, whatever the run was trained for, so that numbers of
different methods and tasks are numbers of the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lesam.flatness import Progress
from lesam.lab.config.run import RunConfig
from lesam.lab.data import Batches, Splits
from lesam.lab.data.seeds import generator
from lesam.lab.files import sha256
from lesam.lab.runs.checkpoint import WEIGHTS, Checkpoint, listed
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.restore import load_data, load_model, plain_batches

Watch = Callable[[str], Progress]
"""Called with the name of a measurement when it begins; what it returns hears of its progress."""

loss_function = functional.cross_entropy


def accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Share of right answers."""
    return (outputs.argmax(1) == labels).double().mean()


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
        """Draw the images; a smaller number of samples is a part of a larger one."""
        order = torch.randperm(len(splits.train), generator=generator("flatness", seed))
        chosen = splits.train.subset(order[:samples])
        self._batches: Batches = plain_batches(config, chosen, batch_size=batch_size, device=device)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of images and labels."""
        return self._batches.epoch(0)


class Bench:
    """A run ready to be measured; images and networks are loaded when a measurement first needs them."""

    def __init__(
        self,
        run: RunFolder,
        *,
        samples: int,
        batch_size: int,
        subset_seed: int,
        device: torch.device | str | None = None,
    ) -> None:
        """Name the run and the images to measure on; without a device, CUDA where there is one."""
        self.run, self.config = run, run.config()
        self.device = ("cuda" if torch.cuda.is_available() else "cpu") if device is None else device
        self._subset: dict[str, Any] = {"samples": samples, "batch_size": batch_size}
        self._seed = subset_seed
        self._checksums: dict[int, str] = {}

    @cached_property
    def _splits(self) -> Splits:
        return load_data(self.config)

    @cached_property
    def images(self) -> Images:
        """The images to measure on."""
        return Images(self.config, self._splits, **self._subset, seed=self._seed, device=self.device)

    def model(self, epoch: int) -> nn.Module:
        """The network after so many epochs."""
        return load_model(self.run, epoch, device=self.device, classes=self._splits.classes, scored=True)[0]

    def key(self, epoch: int) -> dict[str, Any]:
        """What decides every number measured after so many epochs: the run, its weights, the images."""
        if epoch not in self._checksums:
            self._checksums[epoch] = sha256(kept(self.run)[epoch].path / WEIGHTS)
        return {
            "run": self.config.fingerprint,
            "weights": self._checksums[epoch],
            **self._subset,
            "subset_seed": self._seed,
        }


def kept(run: RunFolder) -> dict[int, Checkpoint]:
    """The checkpoints of a run by the number of finished epochs; those inside an epoch are left out."""
    return {checkpoint.epoch: checkpoint for checkpoint in listed(run.checkpoints) if checkpoint.batch == 0}


def kept_epoch(run: RunFolder, epoch: int | None) -> int:
    """The epoch itself if its checkpoint was kept, the last kept one for None, else an error that lists them."""
    found = sorted(kept(run))
    if not found:
        raise ValueError(f"{run.path} has no checkpoint at the end of an epoch; `lesam train` writes them")
    if epoch is None:
        return found[-1]
    if epoch not in found:
        raise ValueError(
            f"{run.path} has no checkpoint after {epoch} epochs; it has those after {', '.join(map(str, found))}. "
            f"Train with --set record.keep_epochs={epoch} to keep it"
        )
    return epoch
