"""ViT-B/16, pretrained on ImageNet-1K, fine-tuned on CIFAR for 8,000 steps.

The paper gives the checkpoint and the number of steps. Everything else here is the usual fine-tuning recipe
(Dosovitskiy et al.: SGD with momentum, warm-up of 500 steps, cosine, norm of the final gradient clipped to 1).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from lesam.lab.config.optimizer import ADAPTIVE, has_budget, optimizer_config
from lesam.lab.config.run import DataConfig, ModelConfig, RecordConfig, RunConfig, ScheduleConfig
from lesam.lab.recipes._smoke import smoke_run
from lesam.lab.recipes.recipe import CHECKPOINT_MINUTES, Figure, Recipe, Settings

STEPS = 8000
WARMUP = 500
BATCH = 128
EPOCHS = 21  # 8,000 steps of 128 images are 20.5 epochs of 50,000


def vit(data: str, method: str, scale: str, seed: int) -> RunConfig:
    """A fine-tuning run; the smoke scale trains a tiny transformer from scratch."""
    name = f"vit-{data}"
    if scale == "smoke":
        tiny = {"image_size": 16, "patch": 4, "layers": 1, "heads": 2, "width": 16}
        per_step: dict[str, Any] = {"lr_per": "step", "lr_warmup": 2, "budget_per": "step", "steps": 7}
        per_step["anneal_start"] = 1 / 7
        return smoke_run(name, method, seed, ModelConfig(name="vit_b_16", options=tiny), **per_step)
    common: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.0, "max_norm": 1.0}
    if method in ADAPTIVE:
        common |= {"lr": 1e-4}
    return RunConfig(
        recipe=name,
        scale=scale,
        seed=seed,
        data=DataConfig(name=data, augment="vit", batch_size=BATCH, eval_batch_size=256),
        model=ModelConfig(name="vit_b_16", options={"weights": "IMAGENET1K_V1"}),
        optimizer=optimizer_config(method, **common, **vit_settings(method)),
        schedule=ScheduleConfig(
            epochs=EPOCHS,
            steps=STEPS,
            lr_per="step",
            lr_warmup=WARMUP,
            budget_per="step",
            budget_anneal_start=0.8 if has_budget(method) else None,
        ),
        record=RecordConfig(checkpoint_minutes=CHECKPOINT_MINUTES),
    )


def vit_settings(method: str) -> Settings:
    """Hyper-parameters for fine-tuning a vision transformer; the paper gives none, all are to be searched."""
    settings: dict[str, Settings] = {
        "sam": {"rho": 0.05},
        "esam": {"rho": 0.05, "beta": 0.6, "gamma": 0.5},
        "lesam": {"sigma": 0.1, "rho_max": 0.2},
        "lesamplus": {"sigma": 0.05, "alpha": 0.5, "rho_max": 0.2},
    }
    return settings.get(method, {})


# Table on fine-tuning ViT-B/16.
FIGURES: dict[str, dict[str, Figure]] = {
    "vit-cifar10": {"sgd": (98.08, 0.11), "sam": (98.28, 0.13), "lesam": (98.72, 0.08)},
    "vit-cifar100": {"sgd": (88.31, 0.13), "sam": (89.34, 0.10), "lesam": (89.65, 0.11)},
}

RECIPES = tuple(
    Recipe(
        name=f"vit-{data}",
        title=f"ViT-B/16, pretrained on ImageNet, fine-tuned on {data.upper().replace('CIFAR', 'CIFAR-')}",
        build=partial(vit, data),
        figures=FIGURES[f"vit-{data}"],
        ours="optimizer, learning rate, batch size, warm-up, augmentation, rho, sigma, cap and annealing",
        without={"small": "a small vision transformer does not interpolate in minutes on two CPU cores"},
    )
    for data in ("cifar10", "cifar100")
)
