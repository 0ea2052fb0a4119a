"""Recipes whose runs are attacked afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from lesam.lab import models, recipes
from lesam.lab.attacks.run import pixel_model
from lesam.lab.config.optimizer import methods
from lesam.lab.config.text import override
from lesam.lab.models import NormalisedInput
from lesam.lab.recipes.published import published_under_attack
from lesam.lab.recipes.robust import ATTACKED

# Recipes.


@pytest.mark.parametrize(("data", "sigma"), [("cifar10", 0.2), ("cifar100", 0.4)])
def test_recipes_have_the_protocol_s_settings(data: str, sigma: float) -> None:
    config = recipes.build(f"robust-{data}", method="lesam", scale="paper")
    optimizer: Any = config.optimizer
    assert (optimizer.sigma, optimizer.rho_max, config.schedule.budget_anneal_start) == (sigma, None, None)
    sam: Any = recipes.build(f"robust-{data}", method="sam", scale="paper").optimizer
    assert sam.rho == 0.4
    for chosen in (optimizer, sam):
        assert (chosen.lr, chosen.momentum, chosen.weight_decay, chosen.batch_norm) == (0.1, 0.9, 5e-4, "both")
    schedule = config.schedule
    assert (schedule.epochs, schedule.lr, schedule.in_epochs().lr_milestones, schedule.lr_gamma) == (
        100,
        "multistep",
        (75, 90),
        0.1,
    )
    assert (config.data.name, config.data.augment, config.data.batch_size) == (data, "reflect", 128)
    assert config.model.name == "preact_resnet18"
    model = models.build(config.model.name, 10, **dict(config.model.options))  # type: ignore[arg-type]
    assert isinstance(model, NormalisedInput)
    expected = {"cifar10": (0.4914, 0.4822, 0.4465), "cifar100": (0.507075, 0.486549, 0.440918)}[data]
    torch.testing.assert_close(model.mean.flatten(), torch.tensor(expected))


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
@pytest.mark.parametrize("method", methods())
def test_every_method_has_a_run_on_pixels(method: str, scale: str) -> None:
    for data in ("cifar10", "cifar100"):
        config = recipes.build(f"robust-{data}", method=method, scale=scale)
        assert config.method == method
        assert config.data.normalisation == (None if scale == "paper" else "unit")
        assert config.model.options["normalisation"] == f"robust_{data}"
        pixel_model(models.build(config.model.name, 4, **dict(config.model.options)), config)  # type: ignore[arg-type]


def test_the_small_scale_follows_the_others() -> None:
    mine = recipes.build("robust-cifar100", method="lesam", scale="small")
    other = recipes.build("cifar100-resnet18", method="lesam", scale="small")
    assert (mine.schedule, mine.optimizer, mine.record) == (other.schedule, other.optimizer, other.record)
    assert replace(mine.data, normalisation=None) == replace(other.data, normalisation=None)


def test_the_paper_s_figures_stand_beside_the_paper_s_setting_only() -> None:
    gains = {
        (recipe, preset): round(figures["lesam"][preset] - figures["sam"][preset], 2)
        for recipe, figures in ATTACKED.items()
        for preset in ("linf-1", "l2-32")
    }
    assert list(gains.values()) == [2.44, 0.79, 2.37, 0.90]
    config = recipes.build("robust-cifar10", method="sam", scale="paper")
    assert published_under_attack(config, "linf-1") == 55.47
    assert published_under_attack(override(config, ["optimizer.batch_norm=clean"]), "l2-32") == 64.33
    for change in ("optimizer.rho=0.1", "schedule.epochs=50", "data.augment=basic"):
        assert published_under_attack(override(config, [change]), "linf-1") is None
    assert published_under_attack(recipes.build("robust-cifar10", method="sam", scale="small"), "linf-1") is None
