"""The small scale: a part of real CIFAR on which a small convolutional network interpolates, for two CPU cores.

5,000 images of 16 x 16 pixels without augmentation, 25 epochs: about a minute of one thread for methods of one pass a
step, two for the others. What was tried on the way to the setting is in ``docs/small-scale.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lesam.lab.config.optimizer import ADAPTIVE, OptimizerConfig, has_budget, optimizer_config
from lesam.lab.config.run import DataConfig, ModelConfig, RecordConfig, RunConfig, ScheduleConfig
from lesam.lab.recipes.recipe import Settings

SIDE = 16
EPOCHS = 25

# Where a search starts, not its result.
START: Mapping[str, Settings] = {
    **{method: {"rho": 0.2} for method in ("sam", "gsam", "friendlysam", "ssam", "fishersam", "s2sam")},
    "asam": {"rho": 1.0},
    "esam": {"rho": 0.1},
    "eigensam": {"rho": 0.2, "every": 80},
    "msam": {"rho": 1.0},
    "lesam": {"sigma": 0.2, "rho_max": None},
    "lesamplus": {"sigma": 0.1, "rho_max": None},
    "onepasslesam": {"sigma": 0.1, "rho_max": None},
    "partiallesam": {"sigma": 0.4, "rho_max": None},
}


def small_run(
    recipe: str, data: str, method: str, seed: int, model: ModelConfig, *, images: int = 5000, epochs: int = EPOCHS
) -> RunConfig:
    """A run of a convolutional network on small images, with the budget warmed up and annealed and without a cap."""
    return RunConfig(
        recipe=recipe,
        scale="small",
        seed=seed,
        data=small_images(data, seed, images=images, batch_size=64),
        model=model,
        optimizer=_optimizer(method),
        schedule=ScheduleConfig(epochs=epochs, **budget_times(method)),
        # Evaluating takes as long as an epoch.
        record=RecordConfig(evaluate_every=10, checkpoint_every=10, keep_epochs=(0.25, 0.5, 0.75, 1.0)),
    )


def budget_times(method: str, warmup: float = 0.2) -> dict[str, Any]:
    """When the budget of LE-SAM and LE-SAM+ is raised and annealed; other methods keep their radius.

    At the start gradients are small, so a budget buys a radius from which no run came back: it is raised over the first
    fifth, and annealed over the last.
    """
    budgeted = has_budget(method)
    return {"budget_warmup": warmup if budgeted else 0, "budget_anneal_start": 0.8 if budgeted else None}


def small_images(data: str, seed: int, *, images: int, batch_size: int) -> DataConfig:
    """Training images that each seed draws for itself, the same for all methods, and 5,000 others for validation.

    CIFAR-100 has its 20 coarse labels: of 100 classes there would be too few images each.
    """
    coarse: dict[str, Any] = {"labels": "coarse"} if data == "cifar100" else {}
    return DataConfig(
        name=data,
        options={"train_size": images, "validation": 0.1, "seed": seed, **coarse},
        augment_options={"resize": SIDE},
        normalisation=data,
        batch_size=batch_size,
    )


def _optimizer(method: str) -> OptimizerConfig:
    if method in ADAPTIVE:
        return optimizer_config(method, lr=1e-3, weight_decay=ADAPTIVE[method])
    return optimizer_config(method, lr=0.05, nesterov=True, weight_decay=5e-4, **START.get(method, {}))
