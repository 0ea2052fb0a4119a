"""A small network pretrained on 60 classes of CIFAR-100, and fine-tuned on few images of the other 40.

Both with images of 16 x 16 pixels and the narrow ResNet of the small scale. Every seed draws its own images and
pretrains its own network, the same for all methods. Without ``model.options.weights`` the second recipe trains from
scratch. ``small`` and ``paper`` are the same setting: the LE-SAM paper does not have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lesam.lab.config.optimizer import ADAPTIVE, optimizer_config
from lesam.lab.config.run import DataConfig, ModelConfig, RecordConfig, RunConfig, ScheduleConfig
from lesam.lab.recipes._small import SIDE, START, budget_times
from lesam.lab.recipes._smoke import smoke_run
from lesam.lab.recipes.recipe import Recipe

PRETRAINING, FINETUNING = "cifar100-pretraining", "cifar100-finetuning"


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """What one of the two kinds of runs trains on, and how."""

    recipe: str
    classes: str
    """Fine classes of CIFAR-100, which are in alphabetical order."""
    images: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the data."""
    augment: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int
    lr: float
    epochs: int
    smoke_classes: str
    """Of the ten made-up ones at the smoke scale."""


# Every image is seen a few times, mirrored or not: what a network of this size learns in a minute of one core.
OLD = Phase(
    recipe=PRETRAINING,
    classes="0-59",
    augment={"flip": True},
    batch_size=128,
    lr=0.2,
    epochs=8,
    smoke_classes="0-5",
)
# 25 images of each class.
NEW = Phase(
    recipe=FINETUNING,
    classes="60-99",
    images={"train_size": 1000},
    batch_size=50,
    lr=0.02,
    epochs=15,
    smoke_classes="6-9",
)


def run_of(phase: Phase, method: str, scale: str, seed: int) -> RunConfig:
    """A run of a phase: the learning rate is warmed up over a tenth and annealed to 0, step by step."""
    network = ModelConfig(name="small_resnet", options={"width": 4 if scale == "smoke" else 16})
    if scale == "smoke":
        run = smoke_run(phase.recipe, method, seed, network)
        size: dict[str, Any] = {"train_size": 160, "test_size": 80, "classes": 10, "validation": 0.25}
        options = {**run.data.options, **size, "only_classes": phase.smoke_classes}
        return replace(run, data=replace(run.data, options=options))
    common: dict[str, Any] = {"lr": phase.lr, "nesterov": True, "weight_decay": 5e-4}
    if method in ADAPTIVE:
        common = {"lr": 1e-3, "weight_decay": ADAPTIVE[method]}
    return RunConfig(
        recipe=phase.recipe,
        scale=scale,
        seed=seed,
        data=DataConfig(
            name="cifar100",
            options={**phase.images, "only_classes": phase.classes, "validation": 0.1, "seed": seed},
            augment_options={"resize": SIDE, **phase.augment},
            normalisation="cifar100",
            batch_size=phase.batch_size,
        ),
        model=network,
        optimizer=optimizer_config(method, **common, **START.get(method, {})),
        schedule=ScheduleConfig(epochs=phase.epochs, lr_per="step", lr_warmup=0.1, **budget_times(method)),
        record=RecordConfig(evaluate_every=phase.epochs, checkpoint_every=phase.epochs, keep=1),
    )


RECIPES = (
    Recipe(
        name=PRETRAINING,
        title="60 classes of CIFAR-100 of 16 x 16, small ResNet: a network to fine-tune",
        build=partial(run_of, OLD),
    ),
    Recipe(
        name=FINETUNING,
        title="1,000 images of the other 40 classes; model.options.weights=RUN starts from a pretrained network",
        build=partial(run_of, NEW),
    ),
)
