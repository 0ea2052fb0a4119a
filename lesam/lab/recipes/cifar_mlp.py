"""A fully connected network on 10,000 small CIFAR images: real images on which it interpolates, in half a minute a run.

CIFAR-100 has its 20 coarse labels here. Every seed draws its own 10,000 training and 5,000 validation images, the same
for all methods. ``small`` and ``paper`` are the same setting: the LE-SAM paper does not have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from lesam.lab.config.optimizer import optimizer_config
from lesam.lab.config.run import ModelConfig, RecordConfig, RunConfig, ScheduleConfig
from lesam.lab.recipes._small import SIDE, START, budget_times, small_images
from lesam.lab.recipes._smoke import smoke_run
from lesam.lab.recipes.recipe import CHECKPOINT_MINUTES, Recipe, Settings

# Plain optimizers with rates that train; the others wrap AdamW. Found by hand on other seeds than 0 to 19.
_BASES: Mapping[str, Settings] = {
    "sgd": {"lr": 0.02, "weight_decay": 5e-4},
    "adam": {"lr": 1e-3},
    "adamw": {"lr": 1e-3, "weight_decay": 1e-2},
}


def cifar_mlp(data: str, method: str, scale: str, seed: int) -> RunConfig:
    """A run of the fully connected network."""
    name, network = f"{data}-mlp", ModelConfig(name="mlp", options={"inputs": 3 * SIDE**2, "width": 256, "depth": 3})
    if scale == "smoke":
        run = smoke_run(name, method, seed, network, image_size=SIDE)
        return replace(run, data=replace(run.data, options={**run.data.options, "validation": 0.25}))
    base = _BASES.get(method) or {"base": "adamw", **_BASES["adamw"]}
    return RunConfig(
        recipe=name,
        scale=scale,
        seed=seed,
        data=small_images(data, seed, images=10_000, batch_size=128),
        model=network,
        optimizer=optimizer_config(method, **base, **START.get(method, {})),
        schedule=ScheduleConfig(epochs=40, **budget_times(method)),
        record=RecordConfig(evaluate_every=10, checkpoint_minutes=CHECKPOINT_MINUTES, keep=1),
    )


RECIPES = (
    Recipe(
        name="cifar10-mlp",
        title="CIFAR-10, 10,000 images of 16 x 16, fully connected network, AdamW",
        build=partial(cifar_mlp, "cifar10"),
    ),
    Recipe(
        name="cifar100-mlp",
        title="CIFAR-100 in 20 coarse classes, 10,000 images of 16 x 16, fully connected network, AdamW",
        build=partial(cifar_mlp, "cifar100"),
    ),
)
