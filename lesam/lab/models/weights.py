"""Pretrained weights: from a local file, or from torchvision by name; all but the head is taken over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.error import URLError

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models import VisionTransformer, WeightsEnum

from lesam.lab.models.glmc import GLMCNet
from lesam.lab.models.mlp import MLP
from lesam.lab.models.normalised import NormalisedInput

WRAPPED = "model."
"""What the names of a network begin with that normalises its inputs itself, see :class:`NormalisedInput`."""


def read_state(weights: str | Path, named: type[WeightsEnum] | None = None) -> dict[str, Tensor]:
    """Read a state dict from a ``.safetensors`` or ``.pth`` file, or download torchvision's by its name.

    A ``.pth`` file is read with ``weights_only=True``, so it runs no code. Of a network behind a normalisation of its
    inputs the network itself is returned.

    Args:
        weights: Path of a local file, or the name of a member of ``named`` such as ``"IMAGENET1K_V1"``.
        named: torchvision's weights of the model; None for a model that torchvision does not have.
    """
    members = {} if named is None else named.__members__
    if named is not None and str(weights) in members:
        choice = named[str(weights)]
        try:
            return dict(choice.get_state_dict(progress=False, check_hash=True))
        except (URLError, OSError) as error:
            raise RuntimeError(
                f"the weights {weights} could not be downloaded ({error}); fetch {choice.url} by other means and name "
                "the file with --set model.options.weights=PATH"
            ) from error
    path = Path(weights).expanduser()
    if not path.is_file():
        others = f"nor one of torchvision's ({', '.join(members)})" if members else "nor the folder of a run"
        raise ValueError(f"model.options.weights={str(weights)!r} is neither a file {others}")
    state = (
        load_file(path) if path.suffix == ".safetensors" else torch.load(path, map_location="cpu", weights_only=True)
    )
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"model.options.weights={str(weights)!r} holds no state dict: save model.state_dict() alone")
    inner = state and all(name.startswith(WRAPPED) for name in state)
    return {name.removeprefix(WRAPPED) if inner else name: value for name, value in state.items()}


def head_of(model: nn.Module) -> tuple[str, ...]:
    """Names of the layers that give the logits: they belong to the classes, everything else to the network.

    Example:
        >>> from lesam.lab import models
        >>> head_of(models.build("small_resnet", 10)), head_of(models.build("mlp", 10, depth=3))
        (('fc',), ('layers.2',))
    """
    if isinstance(model, NormalisedInput):
        return tuple(WRAPPED + name for name in head_of(model.model))
    match model:
        case MLP():
            return (f"layers.{len(model.layers) - 1}",)
        case GLMCNet():
            return "fc", "fc_cb"
        case VisionTransformer():
            return ("heads",)
        case _:
            return ("fc",)


def body_of(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What of a state dict is no part of the model's head."""
    heads = tuple(f"{name}." for name in head_of(model))
    return {name: value for name, value in state.items() if not name.startswith(heads)}


def load_body(model: nn.Module, state: Mapping[str, Tensor], source: str | Path) -> None:
    """Copy a state dict into a model, all but its head, which stays freshly initialised.

    Args:
        model: The model, changed in place.
        state: What to copy.
        source: Where the state came from, for the error message.
    """
    body, expected = body_of(model, state), body_of(model, model.state_dict())
    missing = sorted(expected.keys() - body.keys())
    surplus = sorted(body.keys() - expected.keys())
    misshapen = [
        f"{name} {_spelled(body[name])} instead of {_spelled(expected[name])}"
        for name in sorted(expected.keys() & body.keys())
        if expected[name].shape != body[name].shape
    ]
    if missing or surplus or misshapen:
        found = {"missing": missing, "not expected": surplus, "of another shape": misshapen}
        raise ValueError(
            f"the weights {str(source)!r} do not fit {type(model).__name__}: "
            + "; ".join(f"{what}: {_first(names)}" for what, names in found.items() if names)
        )
    model.load_state_dict(body, strict=False)


def _spelled(value: Tensor) -> str:
    return " x ".join(map(str, value.shape)) or "(a number)"


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
