"""What flatness is measured on: a kept checkpoint of a run, and a fixed part of its training images.

Images are without augmentation, whatever the run was trained for.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import nn

from lesam.lab.data import Splits
from lesam.lab.data.loading import load_data
from lesam.lab.data.subset import Images
from lesam.lab.device import measuring_device
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs.answers import Question
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.restore import load_model


class Subject:
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
        self.device = measuring_device(device, float64=True)
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
        """The network after a number of finished epochs."""
        return load_model(self.run, epoch, device=self.device, classes=self._splits.classes, scored=True)[0]

    def question(self, epoch: int, measure: str, options: dict[str, Any], suffix: str = ".json") -> Question:
        """A question about the network after an epoch; run, weights, images and options decide the answer."""
        if epoch not in self._checksums:
            self._checksums[epoch] = checkpoints.epoch_ends(self.run.checkpoints)[epoch].weights_sha256()
        key = {
            "run": self.config.fingerprint,
            "weights": self._checksums[epoch],
            **self._subset,
            "subset_seed": self._seed,
            **options,
        }
        return Question(run=self.run, room="flatness", name=f"epoch-{epoch:04d}-{measure}", key=key, suffix=suffix)
