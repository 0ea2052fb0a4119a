"""CIFAR-10-LT and CIFAR-100-LT: GLMC with every method, and plain cross-entropy on the same network.

``sgd`` is GLMC alone; the other methods train on GLMC's loss. The values are those of GLMC's released commands; what
the paper leaves open (budget, cap, radius and which loss is climbed) is a choice that comments mark.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lesam.lab.config.optimizer import ADAPTIVE, CONFIGS
from lesam.lab.config.run import DataConfig, ModelConfig, RecordConfig, RunConfig, ScheduleConfig
from lesam.lab.config.task import ClassificationConfig, GLMCConfig, TaskConfig
from lesam.lab.recipes.small import Pace, small_run
from lesam.lab.recipes.smoke import smoke_run
from lesam.lab.recipes.strengths import cifar_settings

EPOCHS = 200
PACE = Pace(epochs=20, batch_size=64, lr=0.05, nesterov=False)
IMBALANCES = (100, 50, 10)
KINDS = ("ce", "glmc")

# GLMC's released commands: r, k and gamma by data set and imbalance. (Another page of the same release gives gamma 4
# for CIFAR-10 at 100.)
_GLMC: dict[tuple[str, int], GLMCConfig] = {
    ("cifar100", 100): GLMCConfig(resampling_power=0.0, weight_power=1.2, gamma=4.0),
    ("cifar100", 50): GLMCConfig(resampling_power=0.2, weight_power=1.2, gamma=6.0),
    ("cifar100", 10): GLMCConfig(resampling_power=0.2, weight_power=1.2, gamma=4.0),
    ("cifar10", 100): GLMCConfig(resampling_power=0.0, weight_power=1.2, gamma=1.0),
    ("cifar10", 50): GLMCConfig(resampling_power=0.0, weight_power=1.2, gamma=1.0),
    ("cifar10", 10): GLMCConfig(resampling_power=0.2, weight_power=1.0, gamma=2.0),
}

# The constants of GLMC's release, which differ between the data sets.
_NORMALISATION = {"cifar10": "cifar10", "cifar100": "fsam"}

# GLMC + SAM has the radius of its public code (Saddle-LongTail). The paper gives neither budget nor cap for GLMC +
# LE-SAM. GLMC's loss is a sum of two cross-entropies and of gamma times a similarity, so CIFAR's budget of 0.35 means
# something else here: search sigma in 0.05, 0.1, 0.2, 0.35, 0.5, with a cap of 0.2 or none.
_STRENGTHS: dict[str, dict[str, Any]] = {
    "sam": {"rho": 0.05},
    "lesam": {"sigma": 0.2, "rho_max": 0.2},
    "lesamplus": {"sigma": 0.1, "alpha": 0.5, "rho_max": 0.2},
}


def longtail(data: str, imbalance: int, kind: str, method: str, scale: str, seed: int) -> RunConfig:
    """A run on long-tailed CIFAR; ``kind`` is ``ce`` or ``glmc``."""
    name = f"{data}-lt{imbalance}-{kind}"
    task: TaskConfig = _GLMC[data, imbalance] if kind == "glmc" else ClassificationConfig()
    if scale == "smoke":
        return _smoke(smoke_run(name, method, seed, _model(kind, width=4, blocks=1)), imbalance, task)
    if scale == "small":
        return _small(small_run(name, data, method, seed, _model(kind, width=16, blocks=1), pace=PACE), imbalance, task)
    return RunConfig(
        recipe=name,
        scale=scale,
        seed=seed,
        # The long tail is drawn without replacement; data.options.with_replacement=true is what GLMC's first published
        # numbers, which the paper quotes, were made with.
        data=DataConfig(
            name=data,
            options={"imbalance": imbalance, "with_replacement": False},
            augment="basic",
            normalisation=_NORMALISATION[data],
            batch_size=64,
        ),
        # Cross-entropy trains GLMC's backbone with a plain head, four times as wide as the usual ResNet-32, so that the
        # rows differ in the loss alone; model.options.width=16 is the usual one.
        model=_model(kind, width=64),
        task=task,
        optimizer=CONFIGS[method](**_settings(method, data, kind)),
        schedule=ScheduleConfig(epochs=EPOCHS),
    )


def _model(kind: str, **options: int) -> ModelConfig:
    return ModelConfig(name="resnet32_glmc" if kind == "glmc" else "resnet32", options=options)


def _settings(method: str, data: str, kind: str) -> dict[str, Any]:
    # BatchNorm moves in both passes in the public code of GLMC + SAM.
    common: dict[str, Any] = {"lr": 0.01, "weight_decay": 5e-3, "batch_norm": "both"}
    if method in ADAPTIVE:  # not in the paper; torch's defaults
        common |= {"lr": 1e-3, "weight_decay": ADAPTIVE[method]}
    own = _STRENGTHS.get(method) if kind == "glmc" else None
    # What the paper does not train here keeps its settings for ResNet-18 on CIFAR.
    return common | dict(own or cifar_settings(method, data, "resnet18"))


def _smoke(config: RunConfig, imbalance: int, task: TaskConfig) -> RunConfig:
    """Four classes whose largest has 101 images, so that no group is empty at an imbalance of 100."""
    options = {**config.data.options, "train_size": 404, "imbalance": imbalance}
    return replace(config, data=replace(config.data, options=options, batch_size=32), task=task)


def _small(config: RunConfig, imbalance: int, task: TaskConfig) -> RunConfig:
    """A long tail cut from 12,000 images: the largest class has 120 of them on CIFAR-100 and 1,200 on CIFAR-10.

    GLMC's settings are made for 34,000 steps: in 800 its re-balanced classifier learns the rarest classes only. So
    classes are weighed more evenly here, which helps and is not enough; see ``docs/long-tail.md``.
    """
    if isinstance(task, GLMCConfig):
        task = replace(task, weight_power=0.5, gamma=1.0)
    options = {**config.data.options, "train_size": 12000, "imbalance": imbalance}
    return replace(
        config,
        data=replace(config.data, options=options, augment="basic"),
        task=task,
        schedule=replace(config.schedule, budget_anneal_start=None),
        record=RecordConfig(evaluate_every=5, checkpoint_every=5),
    )
