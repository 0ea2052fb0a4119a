"""The smoke scale: made-up images, a tiny network, three epochs, seconds."""

from __future__ import annotations

from typing import Any

from lesam.lab.config.optimizer import ADAPTIVE, optimizer_config
from lesam.lab.config.run import DataConfig, ModelConfig, RecordConfig, RunConfig, ScheduleConfig

# Radii that a network of a few thousand weights can bear; chosen so that no method diverges.
_GENTLE: dict[str, dict[str, Any]] = {
    "msam": {"rho": 0.3},
    "lesam": {"sigma": 0.1, "rho_max": 0.4},
    "lesamplus": {"sigma": 0.05, "rho_max": 0.4},
    "eigensam": {"every": 4, "iterations": 2},
}


def smoke_run(
    recipe: str,
    method: str,
    seed: int,
    model: ModelConfig,
    *,
    image_size: int = 16,
    anneal_start: float = 1 / 3,
    **schedule: Any,
) -> RunConfig:
    """A run that exercises everything in seconds and needs no files."""
    common: dict[str, Any] = {"lr": 1e-3} if method in ADAPTIVE else {"lr": 0.05, "weight_decay": 5e-4}
    options = {"classes": 4, "train_size": 64, "test_size": 32, "image_size": image_size}
    return RunConfig(
        recipe=recipe,
        scale="smoke",
        seed=seed,
        data=DataConfig(
            name="synthetic",
            options=options,
            augment="basic",
            augment_options={"padding": 2},
            normalisation="half",
            batch_size=16,
        ),
        model=model,
        optimizer=optimizer_config(method, **common, **_GENTLE.get(method, {})),
        schedule=ScheduleConfig(
            budget_anneal_start=anneal_start if method in ("lesam", "lesamplus") else None, **{"epochs": 3, **schedule}
        ),
        record=RecordConfig(steps_every=2, keep_epochs=(1 / 3, 2 / 3, 1.0)),
    )
