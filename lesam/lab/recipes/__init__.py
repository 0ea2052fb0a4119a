"""Recipes: functions that return the full configuration of a run, one for each cell of the paper's tables.

A recipe knows three scales. ``smoke`` takes seconds and needs no data, ``small`` is a setting on real images for
two CPU cores (``docs/small-scale.md``), ``paper`` is the paper's own. Fields are changed with
:func:`lesam.lab.config.text.override` or ``--set`` on the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lesam.lab.config.optimizer import CONFIGS
from lesam.lab.config.run import RunConfig
from lesam.lab.config.suggest import unknown
from lesam.lab.config.text import normalise
from lesam.lab.recipes.cifar import cifar
from lesam.lab.recipes.digits import digits
from lesam.lab.recipes.domains import SOURCES, domains
from lesam.lab.recipes.imagenet import imagenet
from lesam.lab.recipes.longtail import IMBALANCES, KINDS, longtail
from lesam.lab.recipes.robust import robust
from lesam.lab.recipes.vit import vit

Recipe = Callable[[str, str, int], RunConfig]
"""Takes a method, a scale and a seed."""

RECIPES: dict[str, Recipe] = {
    **{
        f"{data}-{backbone}": partial(cifar, data, backbone)
        for data in ("cifar10", "cifar100")
        for backbone in ("resnet18", "wrn", "pyramid")
    },
    **{f"imagenet-{backbone}": partial(imagenet, backbone) for backbone in ("resnet50", "resnet101")},
    **{f"vit-{data}": partial(vit, data) for data in ("cifar10", "cifar100")},
    **{f"robust-{data}": partial(robust, data) for data in ("cifar10", "cifar100")},
    **{
        f"{data}-lt{imbalance}-{kind}": partial(longtail, data, imbalance, kind)
        for data in ("cifar10", "cifar100")
        for imbalance in IMBALANCES
        for kind in KINDS
    },
    **{
        f"{collection}-{source}": partial(domains, collection, source)
        for collection, sources in SOURCES.items()
        for source in sources
    },
    "digits": digits,
}

NAMES: tuple[str, ...] = tuple(RECIPES)
METHODS: tuple[str, ...] = tuple(CONFIGS)
SCALES: tuple[str, ...] = ("smoke", "small", "paper")


def build(recipe: str, *, method: str = "lesam", scale: str = "small", seed: int = 0) -> RunConfig:
    """The configuration of one run.

    >>> config = build("cifar100-resnet18", method="lesam", scale="paper")
    >>> config.optimizer.sigma, config.optimizer.rho_max, config.schedule.budget_anneal_start
    (0.35, 0.4, 160)
    """
    if recipe not in RECIPES:
        raise unknown("recipe", recipe, NAMES)
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return normalise(RECIPES[recipe](method, scale, seed))
