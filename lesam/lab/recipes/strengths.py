"""How strongly each method perturbs: the hyper-parameters that belong to a method, by setting.

LE-SAM and LE-SAM+ have the paper's values. Every other method has the value its own paper or released code
documents for the setting nearest to the one here, named in a comment; where nothing is published, the library's
default stays and the comment says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Settings = Mapping[str, Any]

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


def imagenet_settings(method: str) -> Settings:
    """Hyper-parameters of a method on ImageNet at the paper's scale."""
    settings: dict[str, Settings] = {
        "sam": {"rho": 0.05},  # SAM's and ESAM's usual value on ImageNet
        "esam": {"rho": 0.05, "beta": 0.6, "gamma": 0.5},  # the same, with the released beta and gamma
        "asam": {"rho": 1.0, "eta": 0.01},  # ASAM's paper, ImageNet
        "gsam": {"rho": 0.04, "rho_min": 0.02, "alpha": 0.01},  # GSAM for ResNets, radius tied to the rate
        "msam": {"rho": 3.0},  # released ResNet-50 command
        "lesam": {"sigma": 0.3, "rho_max": 0.2},  # the paper's ImageNet table
        # No LE-SAM+ on ImageNet in the paper: its smallest CIFAR budget and weight, LE-SAM's cap.
        "lesamplus": {"sigma": 0.15, "alpha": 0.5, "rho_max": 0.2},
    }
    return settings.get(method, {})


def vit_settings(method: str) -> Settings:
    """Hyper-parameters for fine-tuning a vision transformer; the paper gives none, all are to be searched."""
    settings: dict[str, Settings] = {
        "sam": {"rho": 0.05},
        "esam": {"rho": 0.05, "beta": 0.6, "gamma": 0.5},
        "lesam": {"sigma": 0.1, "rho_max": 0.2},
        "lesamplus": {"sigma": 0.05, "alpha": 0.5, "rho_max": 0.2},
    }
    return settings.get(method, {})
