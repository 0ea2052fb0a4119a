"""ImageNet from scratch: ResNet-50 and ResNet-101."""

from __future__ import annotations

from functools import partial
from typing import Any

from lesam.lab.config.optimizer import ADAPTIVE, PLAIN, optimizer_config
from lesam.lab.config.run import DataConfig, ModelConfig, RecordConfig, RunConfig, ScheduleConfig
from lesam.lab.recipes._smoke import smoke_run
from lesam.lab.recipes.recipe import CHECKPOINT_MINUTES, Figure, Recipe, Settings


def imagenet(backbone: str, method: str, scale: str, seed: int) -> RunConfig:
    """A run on a folder with ImageNet's layout; the smoke scale uses a smaller network and made-up images."""
    name = f"imagenet-{backbone}"
    if scale == "smoke":
        model = ModelConfig(name="imagenet_resnet18")
        return smoke_run(name, method, seed, model, image_size=32, epochs=2, steps=5, anneal_start=0.5)
    # Paper, appendix, table of hyper-parameters on ImageNet.
    common: dict[str, Any] = {"lr": 0.2, "weight_decay": 1e-4}
    if method in ADAPTIVE:  # not in the paper; torch's defaults
        common = {"lr": 1e-3, "weight_decay": ADAPTIVE[method]}
    if method not in PLAIN:
        # One perturbation for each worker is the convention of SAM, ESAM and GSAM on several devices.
        common["perturbation"] = "local"
    return RunConfig(
        recipe=name,
        scale=scale,
        seed=seed,
        data=DataConfig(name="imagefolder", augment="imagenet", batch_size=512, eval_batch_size=256),
        model=ModelConfig(name=f"imagenet_{backbone}"),
        optimizer=optimizer_config(method, **common, **imagenet_settings(method)),
        schedule=ScheduleConfig(
            epochs=90,
            # No warm-up is stated; schedule.lr_warmup=5 is the usual choice for large batches.
            budget_anneal_start=2 / 3 if method in ("lesam", "lesamplus") else None,
        ),
        record=RecordConfig(checkpoint_minutes=CHECKPOINT_MINUTES),  # no experiment reads earlier epochs
    )


def imagenet_settings(method: str) -> Settings:
    """Hyper-parameters of a method on ImageNet at the paper's scale."""
    settings: dict[str, Settings] = {
        "sam": {"rho": 0.05},  # SAM's and ESAM's usual value on ImageNet
        "esam": {"rho": 0.05, "beta": 0.6, "gamma": 0.5},  # the same, with the released beta and gamma
        "asam": {"rho": 1.0, "eta": 0.01},  # ASAM's paper, ImageNet
        # Nothing for ImageNet: the releases' values for CIFAR-100 (Friendly-SAM) and for CIFAR (Eigen-SAM).
        "friendlysam": {"rho": 0.2, "weight": 1.0, "decay": 0.9},
        "eigensam": {"rho": 0.1, "alpha": 0.2, "every": 100},
        "gsam": {"rho": 0.04, "rho_min": 0.02, "alpha": 0.01},  # GSAM for ResNets, radius tied to the rate
        "msam": {"rho": 3.0},  # released ResNet-50 command
        "lesam": {"sigma": 0.3, "rho_max": 0.2},  # the paper's ImageNet table
        # No LE-SAM+ on ImageNet in the paper: its smallest CIFAR budget and weight, LE-SAM's cap.
        "lesamplus": {"sigma": 0.15, "alpha": 0.5, "rho_max": 0.2},
    }
    return settings.get(method, {})


# Table on ImageNet: single runs.
FIGURES: dict[str, dict[str, Figure]] = {
    "imagenet-resnet50": {
        "sgd": (76.02, None),
        "eigensam": (76.94, None),
        "asam": (76.68, None),
        "esam": (77.02, None),
        "friendlysam": (76.93, None),
        "sam": (76.70, None),
        "lesam": (77.41, None),
    },
    "imagenet-resnet101": {
        "sgd": (77.81, None),
        "eigensam": (78.96, None),
        "asam": (78.43, None),
        "esam": (79.10, None),
        "friendlysam": (78.72, None),
        "sam": (78.54, None),
        "lesam": (79.31, None),
    },
}

# ASAM and ESAM report ImageNet themselves, and the paper follows recommendations; for these there is none to follow.
GUESSES = {
    "sam": "rho",
    "friendlysam": "rho and the decay, for which only values on CIFAR are released",
    "eigensam": "rho, alpha and the interval, for which only values on CIFAR are released",
    "lesamplus": "sigma, alpha and the cap",
}

RECIPES = tuple(
    Recipe(
        name=f"imagenet-{backbone}",
        title=f"ImageNet from scratch, ResNet-{depth}",
        build=partial(imagenet, backbone),
        figures=FIGURES[f"imagenet-{backbone}"],
        guesses=GUESSES,
        without={"small": "two CPU cores cannot train on ImageNet, and on other images it would be another recipe"},
    )
    for backbone, depth in (("resnet50", 50), ("resnet101", 101))
)
