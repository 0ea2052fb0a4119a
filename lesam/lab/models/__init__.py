"""The networks of the experiments, by name.

Example:
    >>> model = build("resnet18", 10)
    >>> build("resnet81", 10)
    Traceback (most recent call last):
    ...
    ValueError: unknown model 'resnet81'; did you mean 'resnet18'? ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from lesam.lab.config.suggest import unknown
from lesam.lab.config.text import check_options
from lesam.lab.data.normalisation import normalisation as constants_of
from lesam.lab.models.digits import digits_cnn
from lesam.lab.models.glmc import resnet32_glmc
from lesam.lab.models.imagenet import imagenet_resnet18, imagenet_resnet50, imagenet_resnet101, vit_b_16
from lesam.lab.models.mlp import mlp
from lesam.lab.models.normalised import NormalisedInput
from lesam.lab.models.pyramid import pyramidnet110
from lesam.lab.models.resnet import preact_resnet18, resnet18, small_resnet
from lesam.lab.models.resnet32 import resnet32
from lesam.lab.models.signal_cnn import signal_cnn
from lesam.lab.models.weights import load_body, read_state
from lesam.lab.models.wide import wrn28_10

__all__ = ["NAMES", "TITLES", "NormalisedInput", "build", "options"]

_BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": resnet18,
    "preact_resnet18": preact_resnet18,
    "wrn28_10": wrn28_10,
    "pyramidnet110": pyramidnet110,
    "small_resnet": small_resnet,
    "resnet32": resnet32,
    "resnet32_glmc": resnet32_glmc,
    "digits_cnn": digits_cnn,
    "mlp": mlp,
    "signal_cnn": signal_cnn,
    "imagenet_resnet18": imagenet_resnet18,
    "imagenet_resnet50": imagenet_resnet50,
    "imagenet_resnet101": imagenet_resnet101,
    "vit_b_16": vit_b_16,
}

NAMES = tuple(_BUILDERS)

TITLES: dict[str, str] = {
    "resnet18": "ResNet-18 of CIFAR studies, 11 million parameters",
    "preact_resnet18": "pre-activation ResNet-18 of robustness studies, 11 million parameters",
    "wrn28_10": "WideResNet-28-10 without dropout, 36 million parameters",
    "pyramidnet110": "PyramidNet-110 (alpha 270) with basic blocks, 28 million parameters",
    "small_resnet": "narrow ResNet of three stages for studies on a CPU",
    "resnet32": "ResNet-32 of long-tail studies, half a million parameters",
    "resnet32_glmc": "GLMC's ResNet-32, four times as wide, with its two extra heads",
    "digits_cnn": "small BatchNorm network for 8 x 8 digits",
    "mlp": "fully connected network, three layers of 256",
    "signal_cnn": "three convolutions along a signal, for MNIST-1D",
    "imagenet_resnet18": "torchvision's ResNet-18, fresh or pretrained",
    "imagenet_resnet50": "torchvision's ResNet-50, fresh or pretrained",
    "imagenet_resnet101": "torchvision's ResNet-101, fresh or pretrained",
    "vit_b_16": "torchvision's ViT-B/16 with a new head, fresh or pretrained",
}
"""What each model is, in a line."""

_FIXED = ("classes", "maker", "named")


def options(name: str) -> tuple[str, ...]:
    """Return the names of a model's options; every model takes pretrained weights.

    Example:
        >>> options("small_resnet")
        ('width', 'blocks', 'in_channels', 'weights')
    """
    own = _own_options(name)
    return own if "weights" in own else (*own, "weights")


def _own_options(name: str) -> tuple[str, ...]:
    if name not in _BUILDERS:
        raise unknown("model", name, NAMES)
    return tuple(p for p in inspect.signature(_BUILDERS[name]).parameters if p not in _FIXED)


def build(name: str, classes: int, *, normalisation: str | None = None, **chosen: Any) -> nn.Module:
    """Build a freshly initialised model; torch's global random state decides its weights.

    Args:
        name: One of ``NAMES``.
        classes: Number of outputs.
        normalisation: Name of the constants by which the model itself normalises inputs in [0, 1];
            ``None`` when its inputs come normalised.
        **chosen: Options of that model, see ``options(name)``. With ``weights``, the path of a state dict, everything
            but the head starts from there.

    Example:
        >>> import torch
        >>> build("small_resnet", 5, width=4)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 5])
    """
    known = options(name)
    if classes < 1:
        raise ValueError(f"classes must be >= 1, got {classes}")
    for option in chosen:
        if option not in known:
            raise unknown(f"option of {name}", option, (*known, "normalisation"))
    check_options("model.options", chosen, [_weights_option, _BUILDERS[name]])
    weights = None if "weights" in _own_options(name) else chosen.pop("weights", None)
    model = _BUILDERS[name](classes, **chosen)
    if weights is not None:
        load_body(model, read_state(weights), weights)
    return model if normalisation is None else NormalisedInput(model, *constants_of(normalisation))


def _weights_option(weights: str | Path | None) -> None:
    """The type of the option that every model has."""
