"""How many processes share a batch, and whether that decides the outcome of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from lesam.lab import models
from lesam.lab.config.optimizer import own_settings
from lesam.lab.config.run import RunConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SHARES_OF_SAMPLES = ("gamma", "share")
"""Hyper-parameters by which a method takes a part of the samples that a worker has: ESAM's and Partial LE-SAM's."""


def laid_out(config: RunConfig, world_size: int) -> RunConfig:
    """The run with its number of workers, where that is a part of what it is.

    Each worker's BatchNorm sees its own part of the batch, a ``local`` perturbation is made for it, ESAM chooses the
    sharpest samples of it, Partial LE-SAM climbs on its first ones, and dropout and the augmentation of images in
    memory are drawn for it. So two workers with half a batch each do not train the run of one with the whole. Without
    any of these they do, up to rounding.

    >>> from lesam.lab import recipes
    >>> run = recipes.build("digits", scale="smoke")
    >>> laid_out(run, 1).fingerprint == run.fingerprint, laid_out(run, 2).fingerprint == run.fingerprint
    (True, False)
    """
    decides = world_size > 1 and (
        config.optimizer.perturbation == "local"
        or any(own_settings(config.optimizer).get(name, 1.0) < 1.0 for name in SHARES_OF_SAMPLES)
        or (config.data.augment != "none" and config.data.name != "imagefolder")  # files have a seed of their own
        or bool(config.model.options.get("dropout"))
        or _has_own_batch_norm(config)
    )
    return replace(config, system=replace(config.system, workers=world_size if decides else 1))


def share_batch_norm(module: nn.Module, fabric: Fabric) -> nn.Module:
    """The network with BatchNorm over the batches of all workers, itself where there is one worker."""
    if fabric.world_size == 1:
        return module
    if fabric.device.type != "cuda":
        raise ValueError(
            f"system.sync_batch_norm needs GPUs, torch has no such layer for {fabric.device.type}; leave it out, or "
            "train in one process"
        )
    shared: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    return shared


def _has_own_batch_norm(config: RunConfig) -> bool:
    """Whether the network has BatchNorm whose statistics are one worker's."""
    if config.system.sync_batch_norm:
        return False
    options = {name: value for name, value in config.model.options.items() if name != "weights"}
    return _normalises(config.model.name, json.dumps(options, sort_keys=True))


@cache
def _normalises(name: str, options: str) -> bool:
    with torch.device("meta"):  # the parts are asked for, no weights
        network = models.build(name, 2, **json.loads(options))
    return any(isinstance(part, _BatchNorm) for part in network.modules())
