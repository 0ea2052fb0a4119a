"""CIFAR-10-LT and CIFAR-100-LT: GLMC with every method, and plain cross-entropy on the same network.

``sgd`` is GLMC alone; the other methods train on GLMC's loss. The values are those of GLMC's released commands; what
the paper leaves open (budget, cap, radius and which loss is climbed) is a choice that comments mark.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from lesam.lab.config.optimizer import ADAPTIVE, optimizer_config
from lesam.lab.config.run import DataConfig, ModelConfig, RecordConfig, RunConfig, ScheduleConfig
from lesam.lab.config.task import ClassificationConfig, GLMCConfig, TaskConfig
from lesam.lab.recipes._small import EPOCHS as EPOCHS_OF_SMALL
from lesam.lab.recipes._small import small_run
from lesam.lab.recipes._smoke import smoke_run
from lesam.lab.recipes.cifar import cifar_settings
from lesam.lab.recipes.recipe import CHECKPOINT_MINUTES, Figure, Recipe

EPOCHS = 200
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
_RADII: dict[str, dict[str, Any]] = {
    "sam": {"rho": 0.05},
    "lesam": {"sigma": 0.2, "rho_max": 0.2},
    "lesamplus": {"sigma": 0.1, "alpha": 0.5, "rho_max": 0.2},
}


# Images before the tail is cut at the small scale, 20 classes on CIFAR-100 and 10 on CIFAR-10: 4,600 to 5,000 are left.
_SMALL = {100: 20_000, 50: 18_000, 10: 12_000}
_SMALL_EPOCHS = {"ce": EPOCHS_OF_SMALL, "glmc": 18}  # an image of GLMC's is seen in two views


def longtail(data: str, imbalance: int, kind: str, method: str, scale: str, seed: int) -> RunConfig:
    """A run on long-tailed CIFAR; ``kind`` is ``ce`` or ``glmc``."""
    name = f"{data}-lt{imbalance}-{kind}"
    task: TaskConfig = _GLMC[data, imbalance] if kind == "glmc" else ClassificationConfig()
    if scale == "smoke":
        return _smoke(smoke_run(name, method, seed, _model(kind, width=4, blocks=1)), imbalance, task)
    if scale == "small":
        model, epochs = _model(kind, width=16, blocks=1), _SMALL_EPOCHS[kind]
        run = small_run(name, data, method, seed, model, images=_SMALL[imbalance], epochs=epochs)
        return _small(run, imbalance, task)
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
        optimizer=optimizer_config(method, **_settings(method, data, kind)),
        schedule=ScheduleConfig(epochs=EPOCHS),
        record=RecordConfig(checkpoint_minutes=CHECKPOINT_MINUTES),
    )


def _model(kind: str, **options: int) -> ModelConfig:
    return ModelConfig(name="resnet32_glmc" if kind == "glmc" else "resnet32", options=options)


def _settings(method: str, data: str, kind: str) -> dict[str, Any]:
    # BatchNorm moves in both passes in the public code of GLMC + SAM.
    common: dict[str, Any] = {"lr": 0.01, "weight_decay": 5e-3, "batch_norm": "both"}
    if method in ADAPTIVE:  # not in the paper; torch's defaults
        common |= {"lr": 1e-3, "weight_decay": ADAPTIVE[method]}
    own = _RADII.get(method) if kind == "glmc" else None
    # What the paper does not train here keeps its settings for ResNet-18 on CIFAR.
    return common | dict(own or cifar_settings(method, data, "resnet18"))


def _smoke(config: RunConfig, imbalance: int, task: TaskConfig) -> RunConfig:
    """Four classes whose largest has 101 images, so that no group is empty at an imbalance of 100."""
    options = {**config.data.options, "train_size": 404, "imbalance": imbalance}
    return replace(config, data=replace(config.data, options=options, batch_size=32), task=task)


def _small(config: RunConfig, imbalance: int, task: TaskConfig) -> RunConfig:
    """The images and the pace of the convolutional setting, with a long tail; GLMC with two augmented views of each.

    GLMC's released k and gamma are made for 34,000 steps. In 820, on an earlier small scale, they taught its
    re-balanced classifier the rarest classes only, so both are smaller here; see ``docs/long-tail.md``.
    """
    data = replace(config.data, options={**config.data.options, "imbalance": imbalance})
    if isinstance(task, GLMCConfig):
        task, data = replace(task, weight_power=1.0, gamma=1.0), replace(data, augment="basic")
    return replace(config, data=data, task=task)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row of the paper's table on CIFAR-100-LT; recipe and method of ours are those of the run to show beside it."""

    label: str
    at_100: Figure
    """At an imbalance of 100."""
    at_50: Figure
    origin: Literal["trained", "quoted", "later"] = "quoted"
    """Trained by the paper, quoted in it, or published by GLMC's authors after what the paper quotes."""
    kind: Literal["ce", "glmc"] | None = None
    method: str | None = None


# The paper trained two of its rows; the others it quotes. GLMC's quoted row was made on a long tail that was drawn with
# replacement, and GLMC's authors have since reported more without: it is no baseline for the rows below it.
ROWS: tuple[Row, ...] = (
    Row(label="CE", at_100=(42.1, None), at_50=(46.1, None), kind="ce", method="sgd"),
    Row(label="BBN", at_100=(42.6, None), at_50=(47.1, None)),
    Row(label="KCL", at_100=(42.8, None), at_50=(46.3, None)),
    Row(label="TSC", at_100=(43.8, None), at_50=(47.4, None)),
    Row(label="HCL", at_100=(46.7, None), at_50=(51.9, None)),
    Row(label="ETF-DR", at_100=(45.3, None), at_50=(50.4, None)),
    Row(label="SEL", at_100=(44.5, None), at_50=(49.6, None)),
    Row(label="Focal-SAM", at_100=(44.0, None), at_50=(48.1, None)),
    Row(label="RBL", at_100=(53.1, None), at_50=(57.2, None)),
    Row(label="GLMC", at_100=(55.9, None), at_50=(61.1, None), kind="glmc", method="sgd"),
    Row(label="GLMC, without replacement", at_100=(57.97, None), at_50=(63.78, None), origin="later"),
    Row(label="GLMC + SAM", at_100=(57.25, 0.34), at_50=(63.01, 0.41), origin="trained", kind="glmc", method="sam"),
    Row(
        label="GLMC + LE-SAM", at_100=(58.65, 0.46), at_50=(63.67, 0.47), origin="trained", kind="glmc", method="lesam"
    ),
)

NOTE = (
    "GLMC's quoted accuracies (55.9 and 61.1) were made on a long tail drawn with replacement; without, its authors "
    "report 57.97 and 63.78. Ours is drawn without, for every row."
)

# Quoted rows were made in settings of their own: only what the paper trained is shown beside a run as its figure.
_TRAINED = [(row.method, row) for row in ROWS if row.origin == "trained" and row.method is not None]
FIGURES: dict[str, dict[str, Figure]] = {
    "cifar100-lt100-glmc": {method: row.at_100 for method, row in _TRAINED},
    "cifar100-lt50-glmc": {method: row.at_50 for method, row in _TRAINED},
}

RECIPES = tuple(
    Recipe(
        name=f"{data}-lt{imbalance}-{kind}",
        title=f"{data.upper().replace('CIFAR', 'CIFAR-')}-LT, imbalance {imbalance}, "
        f"{'GLMC' if kind == 'glmc' else 'cross-entropy'}",
        build=partial(longtail, data, imbalance, kind),
        figures=FIGURES.get(f"{data}-lt{imbalance}-{kind}", {}),
        ours="network, rho, sigma, cap and the loss that is climbed" if kind == "glmc" else "network",
    )
    for data in ("cifar10", "cifar100")
    for imbalance in IMBALANCES
    for kind in KINDS
)
