"""The small scale: a part of real CIFAR that plain SGD interpolates, for two CPU cores.

How the setting was found, and what else was tried, is in ``docs/small-scale.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lesam.lab.config.optimizer import ADAPTIVE, optimizer_config
from lesam.lab.config.run import DataConfig, ModelConfig, RecordConfig, RunConfig, ScheduleConfig

_SETTINGS: dict[str, dict[str, Any]] = {
    "sam": {"rho": 0.05},
    "lesam": {"sigma": 0.1, "rho_max": 0.4},
    "lesamplus": {"sigma": 0.05, "alpha": 0.5, "rho_max": 0.4},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How a network is brought to interpolate 2,000 images with plain SGD."""

    epochs: int
    batch_size: int
    lr: float
    nesterov: bool


QUICK = Pace(epochs=14, batch_size=32, lr=0.015, nesterov=True)
SLOW = Pace(epochs=30, batch_size=64, lr=0.05, nesterov=False)
"""For networks that need more steps than ResNet-18."""


def small_run(recipe: str, data: str, method: str, seed: int, model: ModelConfig, *, pace: Pace = QUICK) -> RunConfig:
    """A run on a class-balanced part of CIFAR without augmentation."""
    common: dict[str, Any] = {"lr": 1e-3}
    if method not in ADAPTIVE:
        common = {"lr": pace.lr, "weight_decay": 5e-4, "nesterov": pace.nesterov}
    return RunConfig(
        recipe=recipe,
        scale="small",
        seed=seed,
        data=DataConfig(
            name=data,
            options={"train_size": 2000, "validation": 0.04},
            augment_options={"resize": 16},
            normalisation=data,
            batch_size=pace.batch_size,
        ),
        model=model,
        optimizer=optimizer_config(method, **common, **_SETTINGS.get(method, {})),
        schedule=ScheduleConfig(
            epochs=pace.epochs,
            budget_anneal_start=0.8 if method in ("lesam", "lesamplus") else None,
        ),
        record=RecordConfig(evaluate_every=7, checkpoint_every=7, keep_epochs=(0.25, 0.5, 0.75, 1.0)),
    )
