"""When the paper's own figures apply to a run: its setting must be the paper's, but for what the paper leaves open."""

from __future__ import annotations

from typing import Any

from lesam.lab import recipes
from lesam.lab.config import RunConfig
from lesam.lab.recipes.recipe import Figure
from lesam.lab.runs.repetitions import settings

# Readings of the paper that it leaves open: a run with either value is a run of the paper's setting.
_OPEN = (
    *("data.augment", "optimizer.batch_norm", "system.channels_last", "system.compile", "system.precision"),
    *("system.sync_batch_norm", "system.workers"),
)
_OPEN_VALUES = {"data.augment": ("basic", "basic_cutout")}


def published(config: RunConfig) -> Figure | None:
    """The paper's figure for this run, or None where the paper has none or the setting is not the paper's.

    >>> published(recipes.build("cifar100-resnet18", method="lesam", scale="paper"))
    (81.51, 0.08)
    >>> published(recipes.build("cifar100-resnet18", method="lesam", scale="small")) is None
    True
    """
    figure = recipes.figures(config.recipe).get(config.method)
    if figure is None or config.scale != "paper":
        return None
    for path, value in _departures(config).items():
        if not _is_open(path, value):
            return None
    return figure


def same_setting(mine: RunConfig, theirs: RunConfig) -> bool:
    """Whether two runs differ in nothing but readings that the paper leaves open.

    >>> from lesam.lab.config.text import override
    >>> config = recipes.build("cifar100-resnet18", method="lesam", scale="paper")
    >>> [same_setting(override(config, [text]), config) for text in ("data.augment=basic_cutout", "optimizer.lr=0.1")]
    [True, False]
    """
    ours, paper = settings(mine), settings(theirs)
    return all(_is_open(path, ours.get(path)) for path in ours.keys() | paper if ours.get(path) != paper.get(path))


def _is_open(path: str, value: Any) -> bool:
    return path in _OPEN and value in _OPEN_VALUES.get(path, (value,))


def published_under_attack(config: RunConfig, preset: str) -> float | None:
    """The paper's accuracy under an attack, by its name in ``PRESETS``; None as in :func:`published`.

    >>> config = recipes.build("robust-cifar100", method="lesam", scale="paper")
    >>> published_under_attack(config, "linf-1"), published_under_attack(config, "linf-2")
    (29.86, None)
    """
    figure = recipes.attacked(config.recipe).get(config.method, {}).get(preset)
    if figure is None or config.scale != "paper":
        return None
    # Not open here: the augmentation.
    return None if _departures(config).keys() - (set(_OPEN) - set(_OPEN_VALUES)) else figure


def _departures(config: RunConfig) -> dict[str, Any]:
    """The settings in which a run differs from its recipe at the paper's scale, with the run's values."""
    paper = settings(recipes.build(config.recipe, method=config.method, scale="paper", seed=config.seed))
    mine = settings(config)
    return {path: mine.get(path) for path in paper.keys() | mine.keys() if mine.get(path) != paper.get(path)}
