"""The paper's own figures (test accuracy in percent: mean, and spread where it is given), and when they apply."""

from __future__ import annotations

from typing import Any

from lesam.lab import recipes
from lesam.lab.config.run import RunConfig
from lesam.lab.recipes import published_longtail
from lesam.lab.runs.repetitions import settings

Figure = tuple[float, float | None]


def figure_text(figure: Figure | None) -> str:
    """A figure as the paper prints it; nothing where it has none.

    >>> figure_text((81.51, 0.08)), figure_text((82.01, None)), figure_text(None)
    ('81.51 ± 0.08', '82.01', '')
    """
    if figure is None:
        return ""
    mean, std = figure
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


# Main table of the paper: CIFAR from scratch.
_CIFAR: dict[str, dict[str, Figure]] = {
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

# Table on ImageNet: single runs.
_IMAGENET: dict[str, dict[str, Figure]] = {
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

# Table on fine-tuning ViT-B/16.
_VIT: dict[str, dict[str, Figure]] = {
    "vit-cifar10": {"sgd": (98.08, 0.11), "sam": (98.28, 0.13), "lesam": (98.72, 0.08)},
    "vit-cifar100": {"sgd": (88.31, 0.13), "sam": (89.34, 0.10), "lesam": (89.65, 0.11)},
}

# Tables on single-domain generalisation: mean accuracy over the three targets, one recipe a source. "ERM++" is adam.
_DOMAINS: dict[str, dict[str, Figure]] = {
    "pacs-photo": {"adam": (43.82, None), "sam": (44.87, None), "lesam": (46.77, None)},
    "pacs-art_painting": {"adam": (65.60, None), "sam": (65.09, None), "lesam": (67.76, None)},
    "pacs-cartoon": {"adam": (74.32, None), "sam": (74.11, None), "lesam": (75.22, None)},
    "pacs-sketch": {"adam": (35.38, None), "sam": (38.69, None), "lesam": (41.71, None)},
    "vlcs-voc2007": {"adam": (62.52, None), "sam": (62.27, None), "lesam": (62.39, None)},
    "vlcs-labelme": {"adam": (47.54, None), "sam": (47.32, None), "lesam": (48.30, None)},
    "vlcs-caltech101": {"adam": (38.17, None), "sam": (46.97, None), "lesam": (47.65, None)},
    "vlcs-sun09": {"adam": (54.80, None), "sam": (53.94, None), "lesam": (55.54, None)},
}

DOMAIN_AVERAGES: dict[str, dict[str, float]] = {
    "pacs": {"adam": 54.78, "sam": 55.69, "lesam": 57.87},
    "vlcs": {"adam": 50.76, "sam": 52.63, "lesam": 53.47},
}
"""Last column of the same tables: the mean over the four sources."""

FIGURES: dict[str, dict[str, Figure]] = _CIFAR | _IMAGENET | _VIT | _DOMAINS | published_longtail.FIGURES

# Table on adversarial attacks: test accuracy under an attack of lesam.lab.attacks.pgd.PRESETS. Clean accuracy is not given.
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

# Readings of the paper that it leaves open: a run with either value is a run of the paper's setting.
_OPEN = ("data.augment", "optimizer.batch_norm", "system.channels_last", "system.compile", "system.precision")
_OPEN_VALUES = {"data.augment": ("basic", "basic_cutout")}


def published(config: RunConfig) -> Figure | None:
    """The paper's figure for this run, or None where the paper has none or the setting is not the paper's.

    >>> published(recipes.build("cifar100-resnet18", method="lesam", scale="paper"))
    (81.51, 0.08)
    >>> published(recipes.build("cifar100-resnet18", method="lesam", scale="small")) is None
    True
    """
    figure = FIGURES.get(config.recipe, {}).get(config.method)
    if figure is None or config.scale != "paper":
        return None
    for path, value in _departures(config).items():
        if path not in _OPEN or value not in _OPEN_VALUES.get(path, (value,)):
            return None
    return figure


def published_under_attack(config: RunConfig, preset: str) -> float | None:
    """The paper's accuracy under an attack, by its name in ``PRESETS``; None as in :func:`published`.

    >>> config = recipes.build("robust-cifar100", method="lesam", scale="paper")
    >>> published_under_attack(config, "linf-1"), published_under_attack(config, "linf-2")
    (29.86, None)
    """
    figure = ATTACKED.get(config.recipe, {}).get(config.method, {}).get(preset)
    if figure is None or config.scale != "paper":
        return None
    # Not open here: the augmentation.
    return None if _departures(config).keys() - (set(_OPEN) - set(_OPEN_VALUES)) else figure


def _departures(config: RunConfig) -> dict[str, Any]:
    """The settings in which a run differs from its recipe at the paper's scale, with the run's values."""
    paper = settings(recipes.build(config.recipe, method=config.method, scale="paper", seed=config.seed))
    mine = settings(config)
    return {path: mine.get(path) for path in paper.keys() | mine.keys() if mine.get(path) != paper.get(path)}
