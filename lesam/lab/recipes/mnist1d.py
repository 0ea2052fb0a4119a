"""MNIST-1D: the stage on which methods differ by many times their noise, in seconds of one core a run.

Two networks: a fully connected one, which the data's shifts make overfit, and the convolutional one of the MNIST-1D
paper. Every seed draws its own 4,000 training and 4,000 validation signals, the same for all methods; the test set of
50,000 is fixed. ``small`` and ``paper`` are the same setting: the LE-SAM paper does not have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from lesam.lab.config.optimizer import optimizer_config
from lesam.lab.config.run import DataConfig, ModelConfig, RecordConfig, RunConfig, ScheduleConfig
from lesam.lab.recipes._small import budget_times
from lesam.lab.recipes.recipe import Recipe, Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A network, how its base optimizer trains it, and where each method's search starts."""

    model: ModelConfig
    base: str
    base_settings: Settings
    settings: Mapping[str, Settings]


NETWORKS: dict[str, Network] = {
    "mlp": Network(
        model=ModelConfig(name="mlp", options={"inputs": 40, "width": 256, "depth": 3}),
        base="adamw",
        base_settings={"lr": 2e-3, "weight_decay": 1e-2},
        settings={
            "sam": {"rho": 0.4},
            "asam": {"rho": 4.0},
            "gsam": {"rho": 0.4},
            "friendlysam": {"rho": 0.4},
            "ssam": {"rho": 0.4},
            "fishersam": {"rho": 0.4},
            "eigensam": {"rho": 0.4, "every": 40},
            "esam": {"rho": 0.4},
            "msam": {"rho": 3.0},
            "s2sam": {"rho": 0.4},
            "lesam": {"sigma": 0.3, "rho_max": None},
            "lesamplus": {"sigma": 0.2, "rho_max": None},
            "onepasslesam": {"sigma": 0.2, "rho_max": None},
            "partiallesam": {"sigma": 0.4, "rho_max": None},
        },
    ),
    "cnn": Network(
        model=ModelConfig(name="signal_cnn"),
        base="adamw",
        base_settings={"lr": 2e-3, "weight_decay": 1e-2},
        settings={
            "sam": {"rho": 0.1},
            "asam": {"rho": 1.0},
            "gsam": {"rho": 0.1},
            "friendlysam": {"rho": 0.1},
            "ssam": {"rho": 0.1},
            "fishersam": {"rho": 0.1},
            "eigensam": {"rho": 0.1, "every": 40},
            "esam": {"rho": 0.1},
            "msam": {"rho": 1.0},
            "s2sam": {"rho": 0.1},
            "lesam": {"sigma": 0.1, "rho_max": None},
            "lesamplus": {"sigma": 0.05, "rho_max": None},
            "onepasslesam": {"sigma": 0.05, "rho_max": None},
            "partiallesam": {"sigma": 0.05, "rho_max": None},
        },
    ),
}

# Plain optimizers other than the network's own base: torch's defaults, with a rate that trains.
_OTHER_BASES: Mapping[str, Settings] = {
    "sgd": {"lr": 0.05, "weight_decay": 5e-4},
    "adam": {"lr": 2e-3},
    "adamw": {"lr": 2e-3, "weight_decay": 1e-2},
}


def mnist1d(network: str, method: str, scale: str, seed: int) -> RunConfig:
    """A run on MNIST-1D."""
    row, smoke = NETWORKS[network], scale == "smoke"
    samples: dict[str, Any] = {"samples": 200, "test_samples": 100} if smoke else {"samples": 8000}
    return RunConfig(
        recipe=f"mnist1d-{network}",
        scale=scale,
        seed=seed,
        data=DataConfig(
            name="mnist1d",
            options={**samples, "validation": 0.5, "seed": seed},
            normalisation="as_is",
            batch_size=20 if smoke else 100,
            eval_batch_size=10_000,
        ),
        model=row.model,
        optimizer=optimizer_config(method, **_base(row, method), **row.settings.get(method, {})),
        schedule=ScheduleConfig(epochs=3 if smoke else 60, **budget_times(method, warmup=0 if smoke else 0.2)),
        record=RecordConfig(evaluate_every=1 if smoke else 10, checkpoint_every=60, keep=1),
    )


def _base(row: Network, method: str) -> Settings:
    if method in _OTHER_BASES:
        return row.base_settings if method == row.base else _OTHER_BASES[method]
    return {"base": row.base, **row.base_settings}


RECIPES = (
    Recipe(name="mnist1d-mlp", title="MNIST-1D, fully connected network, AdamW", build=partial(mnist1d, "mlp")),
    Recipe(name="mnist1d-cnn", title="MNIST-1D, convolutional network, AdamW", build=partial(mnist1d, "cnn")),
)
