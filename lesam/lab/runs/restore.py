"""A finished run brought back from its folder: its network at a checkpoint, its images without augmentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from lesam.lab import models
from lesam.lab.runs.checkpoint import Checkpoint, listed
from lesam.lab.config.run import RunConfig
from lesam.lab.data import Batches, FolderSet, Splits, TensorSet, load
from lesam.lab.config.suggest import unknown
from lesam.lab.data.loading import DTYPES, training_augmentation
from lesam.lab.runs.folder import RunFolder

SPLITS = ("train", "validation", "test")


def load_model(
    run: RunFolder,
    epoch: int | None = None,
    *,
    device: torch.device | str = "cpu",
    classes: int | None = None,
    scored: bool = False,
) -> tuple[nn.Module, Checkpoint]:
    """The network of a run at a checkpoint, in eval mode.

    Args:
        run: The run's folder.
        epoch: Number of whole epochs after which the checkpoint was written; None takes the newest one.
        device: Where the network goes.
        classes: Outputs of the network; None asks the run's data set, which has to be there.
        scored: The weights by which the run is scored, where its kind of training keeps an average of them, instead
            of those that are trained.

    Raises:
        ValueError: There is no such checkpoint (the sentence lists those that exist), or it is damaged.
    """
    config = run.config()
    checkpoint = find_checkpoint(run, epoch)
    options: dict[str, Any] = dict(config.model.options)
    if "weights" in options:  # what training started from: the checkpoint replaces it
        options["weights"] = None
    if classes is None:
        classes = load_data(config).classes
    dtype = DTYPES.get(config.system.precision, torch.float32)
    with torch.random.fork_rng(devices=[]):  # fresh weights are drawn, and then overwritten
        model = models.build(config.model.name, classes, **options).to(dtype)
    average = checkpoint.state().get("task", {}).get("average") if scored else None
    model.load_state_dict(checkpoint.weights() if average is None else average)
    return model.to(device).eval(), checkpoint


def find_checkpoint(run: RunFolder, epoch: int | None = None) -> Checkpoint:
    """The checkpoint at the end of an epoch, or the newest one, with its files verified."""
    found = listed(run.checkpoints)
    if not found:
        raise ValueError(f"{run.path} has no checkpoints")
    ends = {checkpoint.epoch: checkpoint for checkpoint in found if checkpoint.batch == 0}
    if epoch is not None and epoch not in ends:
        raise ValueError(f"{run.path} has no checkpoint after epoch {epoch}; it has {_spelled(tuple(ends))}")
    checkpoint = found[-1] if epoch is None else ends[epoch]
    if (damage := checkpoint.damage()) is not None:
        raise ValueError(f"{checkpoint.path} is damaged ({damage}); this run has checkpoints {_spelled(tuple(ends))}")
    return checkpoint


def load_data(config: RunConfig) -> Splits:
    """The data set of a run."""
    return load(config.data.name, config.data.root, **config.data.options)


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


def _spelled(epochs: Sequence[int]) -> str:
    return f"after epoch {', '.join(map(str, epochs))}" if epochs else "only in the middle of an epoch"
