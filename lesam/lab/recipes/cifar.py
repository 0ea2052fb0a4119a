"""CIFAR-10 and CIFAR-100 from scratch: ResNet-18, WideResNet-28-10 and PyramidNet-110.

``small`` is there for ResNet-18 alone, narrowed to three stages of 16, 32 and 64 channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from lesam.lab.config.optimizer import ADAPTIVE, OptimizerConfig, has_budget, optimizer_config
from lesam.lab.config.run import DataConfig, ModelConfig, RecordConfig, RunConfig, ScheduleConfig
from lesam.lab.recipes._small import small_run
from lesam.lab.recipes._smoke import smoke_run
from lesam.lab.recipes.recipe import CHECKPOINT_MINUTES, Figure, Recipe, Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Backbone:
    """A row of the paper's hyper-parameter table, and the size of the smoke scale."""

    model: str
    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    anneal_start: float | None
    """As a share of the epochs."""
    smoke: dict[str, int]


# Paper, appendix, table of hyper-parameters on CIFAR. Weight decay is the table's (the text says 5e-4 throughout);
# "budget annealing (epoch)" is the epoch in which annealing starts.
BACKBONES: dict[str, Backbone] = {
    "resnet18": Backbone(
        model="resnet18",
        epochs=200,
        batch_size=128,
        lr=0.05,
        weight_decay=1e-3,
        anneal_start=0.8,  # epoch 160
        smoke={"width": 4},
    ),
    "wrn": Backbone(
        model="wrn28_10",
        epochs=200,
        batch_size=256,
        lr=0.05,
        weight_decay=1e-3,
        anneal_start=None,
        smoke={"depth": 10, "width": 1},
    ),
    "pyramid": Backbone(
        model="pyramidnet110",
        epochs=300,
        batch_size=256,
        lr=0.1,
        weight_decay=5e-4,
        anneal_start=None,
        smoke={"depth": 8, "alpha": 12},
    ),
}


def cifar(data: str, backbone: str, method: str, scale: str, seed: int) -> RunConfig:
    """A run on CIFAR from scratch."""
    row, name = BACKBONES[backbone], f"{data}-{backbone}"
    if scale == "smoke":
        return smoke_run(name, method, seed, ModelConfig(name=row.model, options=row.smoke))
    if scale == "small":
        return small_run(name, data, method, seed, ModelConfig(name="small_resnet", options={"width": 16}))
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
            budget_anneal_start=row.anneal_start if has_budget(method) else None,
        ),
        # Half-way and at the end for flatness; experiments that read more epochs ask for them.
        record=RecordConfig(keep_epochs=(0.5, 1.0), checkpoint_minutes=CHECKPOINT_MINUTES),
    )


def _optimizer(row: Backbone, method: str, data: str, backbone: str) -> OptimizerConfig:
    # BatchNorm moves in both passes in ESAM's and the LE-SAM authors' code.
    common: dict[str, Any] = {"lr": row.lr, "weight_decay": row.weight_decay, "batch_norm": "both"}
    if method in ADAPTIVE:  # not in the paper; torch's defaults
        common |= {"lr": 1e-3, "weight_decay": ADAPTIVE[method]}
    return optimizer_config(method, **common, **cifar_settings(method, data, backbone))


# How far each method climbs. LE-SAM and LE-SAM+ have the paper's values. Every other method has the value that its own
# paper or released code documents for the nearest setting, named in a comment; where nothing is published, the
# library's default stays and the comment says so.

# LE-SAM, hyper-parameter tables of the paper's appendix: sigma and the radius cap ("/" is no cap).
_LESAM: Mapping[str, Settings] = {
    "resnet18": {"sigma": 0.35, "rho_max": 0.4},
    "wrn": {"sigma": 0.3, "rho_max": None},
    "pyramid": {"sigma": 0.3, "rho_max": None},
}

# LE-SAM+, section on LE-SAM+ of the paper: (alpha, sigma) on CIFAR-100. The cap is not given there; LE-SAM's of the
# same backbone is kept. CIFAR-10 has no published values and takes those of CIFAR-100.
_LESAM_PLUS: Mapping[str, Settings] = {
    "resnet18": {"sigma": 0.15, "alpha": 0.5, "rho_max": 0.4},
    "wrn": {"sigma": 0.2, "alpha": 0.55, "rho_max": None},
    "pyramid": {"sigma": 0.25, "alpha": 0.6, "rho_max": None},
}

# SAM, as ESAM's released commands run it beside ESAM on the same three backbones (Du et al., ICLR 2022). The
# LE-SAM paper does not say which radius its SAM rows used.
_SAM_RHO: Mapping[str, float] = {"resnet18": 0.05, "wrn": 0.1, "pyramid": 0.2}

# ESAM: beta of the released commands, gamma 0.5 throughout.
_ESAM_BETA: Mapping[str, float] = {"resnet18": 0.6, "wrn": 0.5, "pyramid": 0.5}


def cifar_settings(method: str, data: str, backbone: str) -> Settings:
    """Hyper-parameters of a method on CIFAR at the paper's scale."""
    settings: dict[str, Settings] = {
        "sam": {"rho": _SAM_RHO[backbone]},
        # Released ASAM example (Kwon et al., ICML 2021): rho 0.5 on CIFAR-10, 1.0 on CIFAR-100, eta 0.01.
        "asam": {"rho": 0.5 if data == "cifar10" else 1.0, "eta": 0.01},
        "esam": {"rho": _SAM_RHO[backbone], "beta": _ESAM_BETA[backbone], "gamma": 0.5},
        # Released F-SAM scripts (Li et al., CVPR 2024): rho 0.2 on CIFAR-100, 0.1 the default elsewhere; the
        # average's decay 0.6 for ResNet-18 and 0.9 to 0.95 for wider networks.
        "friendlysam": {
            "rho": 0.1 if data == "cifar10" else 0.2,
            "weight": 1.0,
            "decay": 0.6 if backbone == "resnet18" else 0.9,
        },
        # Released Eigen-SAM code (Luo et al., NeurIPS 2024): rho 0.1, alpha 0.2, refreshed every 100 steps.
        "eigensam": {"rho": 0.1, "alpha": 0.2, "every": 100, "iterations": 5},
        # GSAM (Zhuang et al., ICLR 2022) reports ImageNet only; alpha 0.4 is its CIFAR example's, the radius SAM's.
        "gsam": {"rho": _SAM_RHO[backbone], "alpha": 0.4},
        # StableSAM's released default.
        "ssam": {"rho": 0.05},
        # Released MSAM commands for CIFAR-100 (Becker et al.): rho 3.
        "msam": {"rho": 3.0},
        # S2-SAM's paper treats sparse training and gives no radius for this; the library's default.
        "s2sam": {"rho": 0.05},
        # Fisher-SAM: third-party default, nothing published for this setting.
        "fishersam": {"rho": 0.1, "eta": 1.0},
        "lesam": _LESAM[backbone],
        "lesamplus": _LESAM_PLUS[backbone],
    }
    return settings.get(method, {})


# Main table of the paper: CIFAR from scratch.
FIGURES: dict[str, dict[str, Figure]] = {
    "cifar10-resnet18": {
        "sgd": (95.31, 0.07),
        "eigensam": (96.50, 0.07),
        "asam": (96.53, 0.12),
        "esam": (96.56, 0.08),
        "friendlysam": (96.55, 0.08),
        "sam": (96.52, 0.13),
        "lesam": (96.60, 0.11),
    },
    "cifar10-wrn": {
        "sgd": (96.36, 0.09),
        "eigensam": (97.36, 0.10),
        "asam": (97.31, 0.17),
        "esam": (97.29, 0.11),
        "friendlysam": (97.33, 0.12),
        "sam": (97.27, 0.11),
        "lesam": (97.44, 0.06),
    },
    "cifar10-pyramid": {
        "sgd": (96.56, 0.14),
        "eigensam": (97.44, 0.09),
        "asam": (97.46, 0.07),
        "esam": (97.46, 0.01),
        "friendlysam": (97.46, 0.11),
        "sam": (97.30, 0.10),
        "lesam": (97.63, 0.10),
    },
    "cifar100-resnet18": {
        "sgd": (78.31, 0.10),
        "eigensam": (80.52, 0.17),
        "asam": (80.68, 0.17),
        "esam": (80.71, 0.22),
        "friendlysam": (80.73, 0.21),
        "sam": (80.17, 0.08),
        "lesam": (81.51, 0.08),
        "lesamplus": (82.01, None),  # table on LE-SAM+
    },
    "cifar100-wrn": {
        "sgd": (81.55, 0.14),
        "eigensam": (83.54, 0.12),
        "asam": (83.63, 0.20),
        "esam": (83.88, 0.14),
        "friendlysam": (83.81, 0.21),
        "sam": (83.42, 0.04),
        "lesam": (84.91, 0.11),
        "lesamplus": (85.06, None),
    },
    "cifar100-pyramid": {
        "sgd": (81.88, 0.17),
        "eigensam": (84.53, 0.09),
        "asam": (84.50, 0.10),
        "esam": (85.46, 0.08),
        "friendlysam": (85.48, 0.10),
        "sam": (84.46, 0.04),
        "lesam": (85.91, 0.06),
        "lesamplus": (86.19, None),
    },
}

NO_SMALL = "what two CPU cores can train in minutes is no wide or pyramid network any more"

RECIPES = tuple(
    Recipe(
        name=f"{data}-{backbone}",
        title=f"{data.upper().replace('CIFAR', 'CIFAR-')} from scratch, {label}",
        build=partial(cifar, data, backbone),
        figures=FIGURES[f"{data}-{backbone}"],
        guesses={"lesamplus": "the cap" if data == "cifar100" else "sigma, alpha and the cap"},
        without={} if backbone == "resnet18" else {"small": NO_SMALL},
    )
    for data in ("cifar10", "cifar100")
    for backbone, label in (("resnet18", "ResNet-18"), ("wrn", "WideResNet-28-10"), ("pyramid", "PyramidNet-110"))
)
