"""CIFAR-10 and CIFAR-100 from scratch: ResNet-18, WideResNet-28-10 and PyramidNet-110."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lesam.lab.config.optimizer import ADAPTIVE, CONFIGS, OptimizerConfig
from lesam.lab.config.run import DataConfig, ModelConfig, RecordConfig, RunConfig, ScheduleConfig
from lesam.lab.recipes.small import QUICK, SLOW, Pace, small_run
from lesam.lab.recipes.smoke import smoke_run
from lesam.lab.recipes.strengths import cifar_settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Backbone:
    """A row of the paper's hyper-parameter table, and the sizes of the smaller scales."""

    model: str
    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    anneal_start: int | None
    keep_every: int
    """Epochs between checkpoints that stay."""
    smoke: dict[str, int]
    small: dict[str, int]
    pace: Pace


# Paper, appendix, table of hyper-parameters on CIFAR. Weight decay is the table's (the text says 5e-4 throughout);
# "budget annealing (epoch)" is the epoch in which annealing starts.
BACKBONES: dict[str, Backbone] = {
    "resnet18": Backbone(
        model="resnet18",
        epochs=200,
        batch_size=128,
        lr=0.05,
        weight_decay=1e-3,
        anneal_start=160,
        keep_every=10,
        smoke={"width": 4},
        small={"width": 16},
        pace=QUICK,
    ),
    "wrn": Backbone(
        model="wrn28_10",
        epochs=200,
        batch_size=256,
        lr=0.05,
        weight_decay=1e-3,
        anneal_start=None,
        keep_every=50,
        smoke={"depth": 10, "width": 1},
        small={"depth": 10, "width": 2},
        pace=SLOW,
    ),
    "pyramid": Backbone(
        model="pyramidnet110",
        epochs=300,
        batch_size=256,
        lr=0.1,
        weight_decay=5e-4,
        anneal_start=None,
        keep_every=50,
        smoke={"depth": 8, "alpha": 12},
        small={"depth": 14, "alpha": 48},
        pace=SLOW,
    ),
}


def cifar(data: str, backbone: str, method: str, scale: str, seed: int) -> RunConfig:
    """A run on CIFAR from scratch."""
    row, name = BACKBONES[backbone], f"{data}-{backbone}"
    if scale == "smoke":
        return smoke_run(name, method, seed, ModelConfig(name=row.model, options=row.smoke))
    if scale == "small":
        return small_run(name, data, method, seed, ModelConfig(name=row.model, options=row.small), pace=row.pace)
    return RunConfig(
        recipe=name,
        scale=scale,
        seed=seed,
        # ESAM's constants for both data sets. The paper's tables say "Basic"; the code they build on adds Cutout:
        # that one is data.augment=basic_cutout.
        data=DataConfig(name=data, augment="basic", normalisation="esam", batch_size=row.batch_size),
        model=ModelConfig(name=row.model),
        optimizer=_optimizer(row, method, data, backbone),
        schedule=ScheduleConfig(
            epochs=row.epochs,
            budget_anneal_start=row.anneal_start if method in ("lesam", "lesamplus") else None,
        ),
        # For flatness over training, half-way and at the end, and for the late switch in epoch 160.
        record=RecordConfig(keep_epochs=tuple(range(row.keep_every, row.epochs + 1, row.keep_every))),
    )


def _optimizer(row: Backbone, method: str, data: str, backbone: str) -> OptimizerConfig:
    # BatchNorm moves in both passes in ESAM's and the LE-SAM authors' code.
    common: dict[str, Any] = {"lr": row.lr, "weight_decay": row.weight_decay, "batch_norm": "both"}
    if method in ADAPTIVE:  # not in the paper; torch's defaults
        common |= {"lr": 1e-3, "weight_decay": ADAPTIVE[method]}
    return CONFIGS[method](**common, **cifar_settings(method, data, backbone))
