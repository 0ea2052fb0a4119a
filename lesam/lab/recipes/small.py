"""The small scale: a part of real CIFAR that plain SGD interpolates, for two CPU cores.

How the setting was found, and what else was tried, is in ``docs/small-scale.md``.
"""

from __future__ import annotations

from typing import Any

from lesam.lab.config import DataConfig, ModelConfig, RecordConfig, RunConfig, ScheduleConfig
from lesam.lab.optimizers import CONFIGS

EPOCHS = 21

_SETTINGS: dict[str, dict[str, Any]] = {
    "sam": {"rho": 0.1},
    "lesam": {"sigma": 0.1, "rho_max": 0.4},
    "lesamplus": {"sigma": 0.05, "alpha": 0.5, "rho_max": 0.4},
}


def small_run(recipe: str, data: str, method: str, seed: int, model: ModelConfig) -> RunConfig:
    """A run on a class-balanced part of CIFAR without augmentation."""
    common: dict[str, Any] = {"lr": 1e-3} if method == "adamw" else {"lr": 0.05, "weight_decay": 5e-4}
    return RunConfig(
        recipe=recipe,
        scale="small",
        seed=seed,
        data=DataConfig(
            name=data,
            options={"train_size": 3000, "validation": 0.04},
            augment_options={"resize": 16},
            normalisation=data,
            batch_size=64,
        ),
        model=model,
        optimizer=CONFIGS[method](**common, **_SETTINGS.get(method, {})),
        schedule=ScheduleConfig(
            epochs=EPOCHS,
            budget_anneal_start=EPOCHS * 4 // 5 if method in ("lesam", "lesamplus") else None,
        ),
        record=RecordConfig(evaluate_every=7, checkpoint_every=7, keep_epochs=(EPOCHS // 2, EPOCHS)),
    )
