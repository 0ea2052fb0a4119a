"""Ordinary training before an attack: PreActResNet-18 on CIFAR-10 and CIFAR-100 with inputs in [0, 1].

The setting of Zhang et al. (ICML 2024), which the paper follows. Images stay plain pixels and the network normalises
them itself, so that an attack is a matter of pixels alone. ``lesam attack`` does the rest.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from lesam.lab.config.optimizer import ADAPTIVE, optimizer_config
from lesam.lab.config.run import DataConfig, ModelConfig, RecordConfig, RunConfig, ScheduleConfig
from lesam.lab.recipes._small import small_run
from lesam.lab.recipes._smoke import smoke_run
from lesam.lab.recipes.cifar import cifar_settings
from lesam.lab.recipes.recipe import CHECKPOINT_MINUTES, Recipe

EPOCHS = 100

# LE-SAM's budgets are the paper's. It names neither a cap nor annealing for these runs: there is none.
_SIGMA = {"cifar10": 0.2, "cifar100": 0.4}

# The paper's and Zhang et al.'s radius for SAM.
_SAM_RHO = 0.4


def robust(data: str, method: str, scale: str, seed: int) -> RunConfig:
    """A run whose network takes pixels."""
    name = f"robust-{data}"
    if scale == "smoke":
        run = _in_pixels(smoke_run(name, method, seed, _model(data, width=4)))
        return replace(run, data=replace(run.data, augment="reflect"))
    if scale == "small":
        return _in_pixels(small_run(name, data, method, seed, _model(data, width=8)))
    return RunConfig(
        recipe=name,
        scale=scale,
        seed=seed,
        data=DataConfig(name=data, augment="reflect", batch_size=128),
        model=_model(data),
        optimizer=optimizer_config(method, **_settings(method, data)),
        # A tenth of the rate from 75 % of the epochs on, a hundredth from 90 %.
        schedule=ScheduleConfig(epochs=EPOCHS, lr="multistep", lr_milestones=(0.75, 0.9)),
        record=RecordConfig(checkpoint_minutes=CHECKPOINT_MINUTES),
    )


def _model(data: str, **options: int) -> ModelConfig:
    return ModelConfig(name="preact_resnet18", options={**options, "normalisation": f"robust_{data}"})


def _in_pixels(config: RunConfig) -> RunConfig:
    """The same run with normalisation left to the network."""
    return replace(config, data=replace(config.data, normalisation="unit"))


def _settings(method: str, data: str) -> dict[str, Any]:
    # BatchNorm moves in both passes in the code of Zhang et al.
    common: dict[str, Any] = {"lr": 0.1, "weight_decay": 5e-4, "batch_norm": "both"}
    if method in ADAPTIVE:  # not in the paper; torch's defaults
        common |= {"lr": 1e-3, "weight_decay": ADAPTIVE[method]}
    if method == "sam":
        return common | {"rho": _SAM_RHO}
    if method == "lesam":
        return common | {"sigma": _SIGMA[data], "rho_max": None}
    # Methods that the paper does not attack keep their settings for ResNet-18 on the same images.
    return common | dict(cifar_settings(method, data, "resnet18"))


# Table on adversarial attacks: test accuracy under an attack of lesam.lab.attacks.pgd.PRESETS; none without an attack.
ATTACKED: dict[str, dict[str, dict[str, float]]] = {
    "robust-cifar10": {
        "sam": {"linf-1": 55.47, "l2-32": 64.33},
        "lesam": {"linf-1": 57.91, "l2-32": 65.12},
    },
    "robust-cifar100": {
        "sam": {"linf-1": 27.49, "l2-32": 36.34},
        "lesam": {"linf-1": 29.86, "l2-32": 37.24},
    },
}

RECIPES = tuple(
    Recipe(
        name=f"robust-{data}",
        title=f"{data.upper().replace('CIFAR', 'CIFAR-')} as plain pixels, PreActResNet-18, to be attacked afterwards",
        build=partial(robust, data),
        attacked=ATTACKED[f"robust-{data}"],
        guesses={"lesam": "cap and annealing (there is none of either)"},
    )
    for data in ("cifar10", "cifar100")
)
