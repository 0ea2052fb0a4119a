"""A run brought back from its folder: its network at a checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lesam.lab import models
from lesam.lab.data.loading import DTYPES, load_data
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs.folder import RunFolder


def load_model(
    run: RunFolder,
    epoch: int | None = None,
    *,
    device: torch.device | str = "cpu",
    classes: int | None = None,
    scored: bool = False,
) -> tuple[nn.Module, checkpoints.Checkpoint]:
    """The network of a run at a checkpoint, in eval mode.

    Args:
        run: The run's folder.
        epoch: Number of finished epochs; None takes the last kept checkpoint.
        device: Where the network goes.
        classes: Outputs of the network; None asks the run's data set, which has to be there.
        scored: The weights by which the run is scored, where its kind of training keeps an average of them, instead
            of those that are trained.

    Raises:
        ValueError: There is no such checkpoint (the sentence lists those that exist), or it is damaged.
    """
    config = run.config()
    checkpoint = checkpoints.find(run.checkpoints, epoch)
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
