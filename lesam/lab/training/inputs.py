"""Whether the data sets and pretrained weights of runs are there, before many of them are started."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from lesam.lab import models
from lesam.lab.config.run import RunConfig
from lesam.lab.data import load


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
