"""Whether the data sets and pretrained weights of runs are there and fit, before anything is written."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import nn

from lesam.lab import models
from lesam.lab.config.run import RunConfig
from lesam.lab.data import load


def check_fit(config: RunConfig, module: nn.Module, shape: tuple[int, int, int]) -> None:
    """Refuse a network that cannot take the images, without computing anything."""
    try:
        with torch.no_grad():
            copy.deepcopy(module).to("meta").eval()(torch.zeros(1, *shape, device="meta"))
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as error:
        options = ", ".join(f"{name}={value}" for name, value in config.model.options.items())
        raise ValueError(
            f"model.name={config.model.name} ({options or 'no options'}) cannot take images of {shape[0]} channels and "
            f"{shape[1]} x {shape[2]} pixels from data.name={config.data.name}: {str(error).partition(chr(10))[0]}; "
            "choose another network, or change model.options or data.augment_options"
        ) from None


def check_inputs(configs: Iterable[RunConfig]) -> None:
    """Load every data set and pretrained network once, so that what is missing shows before anything is written.

    A single run needs no such check: its parts are built before its folder is.
    """
    sets: dict[str, RunConfig] = {}
    networks: dict[str, RunConfig] = {}
    for config in configs:
        sets.setdefault(repr((config.data.name, config.data.root, config.data.options)), config)
        if config.model.options.get("weights") is not None:
            networks.setdefault(repr(config.model), config)
    for config in sets.values():
        load(config.data.name, config.data.root, **cast(dict[str, Any], config.data.options))
    for config in networks.values():
        models.build(config.model.name, 10, **config.model.arguments)
