"""Recipes on long-tailed CIFAR."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from lesam.lab import recipes
from lesam.lab.config.optimizer import methods
from lesam.lab.recipes.longtail import ROWS
from lesam.lab.recipes.published import published

# ------------------------------------------------------------------ recipes

LONG_TAILED = [name for name in recipes.names() if "-lt" in name]

# GLMC's released commands: r, k, gamma.
COMMANDS = {
    "cifar100-lt100-glmc": (0.0, 1.2, 4.0),
    "cifar100-lt50-glmc": (0.2, 1.2, 6.0),
    "cifar100-lt10-glmc": (0.2, 1.2, 4.0),
    "cifar10-lt100-glmc": (0.0, 1.2, 1.0),
    "cifar10-lt50-glmc": (0.0, 1.2, 1.0),
    "cifar10-lt10-glmc": (0.2, 1.0, 2.0),
}


def test_there_is_a_recipe_for_every_cell() -> None:
    expected = itertools.product(("cifar10", "cifar100"), (100, 50, 10), ("ce", "glmc"))
    assert set(LONG_TAILED) == {f"{data}-lt{factor}-{kind}" for data, factor, kind in expected}


@pytest.mark.parametrize("recipe", LONG_TAILED)
def test_every_method_builds_at_every_scale(recipe: str) -> None:
    factor = int(recipe.split("-lt")[1].split("-")[0])
    for method, scale in itertools.product(methods(), recipes.SCALES):
        config = recipes.build(recipe, method=method, scale=scale)
        assert config.data.options["imbalance"] == factor
        assert config.task.kind == ("glmc" if recipe.endswith("glmc") else "classification")


@pytest.mark.parametrize("recipe", COMMANDS)
def test_glmc_has_its_released_values(recipe: str) -> None:
    config: Any = recipes.build(recipe, method="sam", scale="paper")
    assert (config.task.resampling_power, config.task.weight_power, config.task.gamma) == COMMANDS[recipe]
    assert (config.schedule.epochs, config.data.batch_size, config.data.augment) == (200, 64, "basic")
    assert (config.optimizer.lr, config.optimizer.weight_decay, config.optimizer.momentum) == (0.01, 5e-3, 0.9)
    assert (config.optimizer.rho, config.optimizer.batch_norm, config.task.ascent) == (0.05, "both", "full")
    assert not config.data.options["with_replacement"]


def test_only_what_the_paper_trained_is_shown_beside_a_run() -> None:
    figures = {
        (factor, method): published(recipes.build(f"cifar100-lt{factor}-glmc", method=method, scale="paper"))
        for factor in (100, 50)
        for method in ("sgd", "sam", "lesam")
    }
    assert figures == {
        (100, "sgd"): None,
        (100, "sam"): (57.25, 0.34),
        (100, "lesam"): (58.65, 0.46),
        (50, "sgd"): None,
        (50, "sam"): (63.01, 0.41),
        (50, "lesam"): (63.67, 0.47),
    }
    assert [row.label for row in ROWS if row.kind is not None] == ["CE", "GLMC", "GLMC + SAM", "GLMC + LE-SAM"]
