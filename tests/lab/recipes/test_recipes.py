"""The recipes hold the paper's numbers, and every one of them runs at the smoke scale."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from lesam.lab import models, recipes
from lesam.lab.config.optimizer import PLAIN, has_budget, methods
from lesam.lab.config.text import override
from lesam.lab.data import load
from lesam.lab.recipes.published import published
from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Silent

# The paper's appendix: epochs, batch, lr, weight decay, cap, sigma, start of annealing.
PAPER = {
    "cifar10-resnet18": (200, 128, 0.05, 1e-3, 0.4, 0.35, 160),
    "cifar10-wrn": (200, 256, 0.05, 1e-3, None, 0.3, None),
    "cifar10-pyramid": (300, 256, 0.10, 5e-4, None, 0.3, None),
    "cifar100-resnet18": (200, 128, 0.05, 1e-3, 0.4, 0.35, 160),
    "cifar100-wrn": (200, 256, 0.05, 1e-3, None, 0.3, None),
    "cifar100-pyramid": (300, 256, 0.10, 5e-4, None, 0.3, None),
    "imagenet-resnet50": (90, 512, 0.2, 1e-4, 0.2, 0.3, 60),
    "imagenet-resnet101": (90, 512, 0.2, 1e-4, 0.2, 0.3, 60),
}


@pytest.mark.parametrize("recipe", PAPER)
def test_lesam_has_the_papers_hyper_parameters(recipe: str) -> None:
    config = recipes.build(recipe, method="lesam", scale="paper")
    optimizer: Any = config.optimizer
    found = (
        config.schedule.epochs,
        config.data.batch_size,
        optimizer.lr,
        optimizer.weight_decay,
        optimizer.rho_max,
        optimizer.sigma,
        config.schedule.in_epochs().budget_anneal_start,
    )
    assert found == PAPER[recipe]
    assert (config.schedule.lr, config.schedule.lr_per, config.schedule.lr_warmup) == ("cosine", "epoch", 0)
    assert (optimizer.base, optimizer.momentum, optimizer.nesterov) == ("sgd", 0.9, False)


@pytest.mark.parametrize(
    ("backbone", "alpha", "sigma"), [("resnet18", 0.5, 0.15), ("wrn", 0.55, 0.2), ("pyramid", 0.6, 0.25)]
)
def test_lesam_plus_has_the_papers_hyper_parameters(backbone: str, alpha: float, sigma: float) -> None:
    optimizer: Any = recipes.build(f"cifar100-{backbone}", method="lesamplus", scale="paper").optimizer
    assert (optimizer.alpha, optimizer.sigma, optimizer.form) == (alpha, sigma, "paper")


def test_vit_is_fine_tuned_for_8000_steps() -> None:
    config = recipes.build("vit-cifar100", method="lesam", scale="paper")
    assert config.schedule.steps == 8000
    assert config.schedule.epochs * (50_000 / config.data.batch_size) >= 8000
    assert config.model.options["weights"] == "IMAGENET1K_V1"


def test_every_published_figure_belongs_to_a_recipe_that_claims_it() -> None:
    for recipe, figures in ((name, recipes.figures(name)) for name in recipes.names()):
        for method, figure in figures.items():
            assert published(recipes.build(recipe, method=method, scale="paper")) == figure


def test_the_papers_figure_is_not_shown_beside_another_setting() -> None:
    config = recipes.build("cifar100-resnet18", method="lesam", scale="paper")
    assert published(override(config, ["data.augment=basic_cutout"])) == (81.51, 0.08)
    for change in ("optimizer.sigma=0.3", "schedule.epochs=100", "data.augment=none", "data.options.train_size=10"):
        assert published(override(config, [change])) is None


@pytest.mark.parametrize(
    ("recipe", "wrong", "right"),
    [("recipe", "cifar100-resnet", "cifar100-resnet18"), ("method", "le-sam", "lesam"), ("scale", "smal", "small")],
)
def test_unknown_names_suggest_the_nearest(recipe: str, wrong: str, right: str) -> None:
    names = {"recipe": "digits", "method": "sgd", "scale": "smoke", recipe: wrong}
    with pytest.raises(ValueError, match=f"unknown {recipe} '{wrong}'; did you mean '{right}'"):
        recipes.build(names["recipe"], method=names["method"], scale=names["scale"])


# Every recipe with a plain method and the paper's own, but for those with two passes, which have tests of their own;
# every method once, on the quickest recipe.
ONE_PASS = [name for name in recipes.names() if not recipes.build(name, scale="smoke").task.two_passes]
SMOKE = [
    *itertools.product(ONE_PASS, ("sgd", "lesam")),
    *(("digits", method) for method in methods() if method not in ("sgd", "lesam")),
    ("cifar100-resnet18", "esam"),
    ("vit-cifar100", "adamw"),
]


@pytest.mark.parametrize(("recipe", "method"), SMOKE)
def test_smoke(recipe: str, method: str, tmp_path: Path) -> None:
    config = recipes.build(recipe, method=method, scale="smoke")
    summary = train(config, runs=tmp_path, progress=Silent())
    last = summary["last"]
    images = len(load(config.data.name, **config.data.options).train)
    steps_per_epoch = math.ceil(images / config.data.batch_size)
    assert last["step"] == (config.schedule.steps or config.schedule.epochs * steps_per_epoch)
    assert 0.0 <= last["test_accuracy"] <= 1.0
    loss = last["train_loss" if last["passes"] >= 1.5 or method in PLAIN else "perturbed_loss"]
    assert loss is not None
    assert loss > 0 or config.task.kind == "glmc"  # which takes a similarity away from the loss
    (weights,) = tmp_path.glob(f"*/checkpoints/step-{last['step']:08d}/weights.safetensors")
    assert all(tensor.isfinite().all() for tensor in load_file(weights).values())
    if method not in PLAIN:
        assert last["rho"] is not None
        assert last["rho"] > 0 or config.schedule.budget_anneal_start is not None


# Folders of earlier versions must be found again. A change here is a change for every user: the changelog says why.
FINGERPRINTS = {
    ("digits", "lesam", "small"): "b9ed48f0f2",
    ("cifar100-resnet18", "lesam", "paper"): "9f23a9a8fa",
    ("cifar100-resnet18", "gsam", "paper"): "e7e25373d3",
    ("cifar10-wrn", "eigensam", "paper"): "5266c7239c",
    ("imagenet-resnet50", "esam", "paper"): "1531a40d2a",
    ("vit-cifar10", "lesamplus", "smoke"): "673920e9f3",
    ("cifar100-mlp", "lesam", "small"): "30504359a0",
    ("pacs-photo", "adam", "paper"): "650e815744",
    ("cifar100-lt100-glmc", "sam", "paper"): "ffa94b60ab",
    ("robust-cifar10", "friendlysam", "smoke"): "66a35c744e",
    ("cifar10-pyramid", "adamw", "smoke"): "aef453a248",
}


@pytest.mark.parametrize("cell", FINGERPRINTS)
def test_folders_keep_their_names(cell: tuple[str, str, str]) -> None:
    recipe, method, scale = cell
    assert recipes.build(recipe, method=method, scale=scale, seed=3).fingerprint == FINGERPRINTS[cell]


WITHOUT_SMALL = {
    *(f"{data}-{backbone}" for data in ("cifar10", "cifar100") for backbone in ("wrn", "pyramid")),
    *("vit-cifar10", "vit-cifar100", "imagenet-resnet50", "imagenet-resnet101"),
}


def test_recipes_that_two_cores_cannot_train_have_no_small_scale() -> None:
    assert {name for name in recipes.names() if not recipes.has_scale(name, "small")} == WITHOUT_SMALL
    for name in recipes.names():
        assert {"smoke", "paper"} <= set(recipes.known()[name].scales)
    for name in sorted(WITHOUT_SMALL):
        with pytest.raises(
            ValueError, match=f"{name} has no scale 'small': .*; take --scale smoke or paper, or a "
        ) as e:
            recipes.build(name, method="sam", scale="small")
        named = re.search(r"such as ([^(]*) \(`lesam list recipes`", str(e.value))
        assert named is not None
        for other in named[1].split(", "):
            assert recipes.build(other, scale="small").scale == "small"


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_the_convolutional_setting(data: str) -> None:
    """As documented in docs/small-scale.md; every seed draws its own images, every method sees the same."""
    config: Any = recipes.build(f"{data}-resnet18", method="lesam", scale="small", seed=7)
    coarse = {"labels": "coarse"} if data == "cifar100" else {}
    assert config.data.options == {"train_size": 5000, "validation": 0.1, "seed": 7, **coarse}
    assert (config.data.augment, config.data.augment_options, config.data.batch_size) == ("none", {"resize": 16}, 64)
    model = models.build(config.model.name, 10, **config.model.options)
    widths = [stage[-1].conv2.out_channels for stage in model.stages]  # type: ignore[union-attr]
    assert widths == [16, 32, 64]
    optimizer, schedule = config.optimizer, config.schedule
    assert (optimizer.lr, optimizer.weight_decay, optimizer.nesterov, optimizer.rho_max) == (0.05, 5e-4, True, None)
    assert (schedule.epochs, schedule.lr, schedule.in_epochs().budget_warmup) == (25, "cosine", 5)
    assert schedule.in_epochs().budget_anneal_start == 20
    for method in methods():
        other = recipes.build(f"{data}-resnet18", method=method, scale="small", seed=7)
        assert (other.data, other.model) == (config.data, config.model)
        if not has_budget(method):
            assert (other.schedule.budget_warmup, other.schedule.budget_anneal_start) == (0, None)
