"""Pretrained weights: from a local file, or from torchvision by name."""

from __future__ import annotations

from pathlib import Path
from urllib.error import URLError

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models import WeightsEnum


def read_state(weights: str | Path, named: type[WeightsEnum]) -> dict[str, Tensor]:
    """Read a state dict from a ``.safetensors`` or ``.pth`` file, or download torchvision's by its name.

    A ``.pth`` file is read with ``weights_only=True``, so it runs no code.

    Args:
        weights: Path of a local file, or the name of a member of ``named`` such as ``"IMAGENET1K_V1"``.
        named: torchvision's weights of the model.
    """
    if str(weights) in named.__members__:
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
        names = ", ".join(named.__members__)
        raise ValueError(f"model.options.weights={str(weights)!r} is neither a file nor one of torchvision's ({names})")
    if path.suffix == ".safetensors":
        return load_file(path)
    return dict(torch.load(path, map_location="cpu", weights_only=True))


def load_body(model: nn.Module, state: dict[str, Tensor], head: str, source: str | Path) -> None:
    """Copy a state dict into a model, all but its head, which stays freshly initialised.

    Args:
        model: The model, changed in place.
        state: What to copy.
        head: Prefix of the head's names, such as ``"fc."``.
        source: Where the state came from, for the error message.
    """
    body = {name: value for name, value in state.items() if not name.startswith(head)}
    expected = {name: value for name, value in model.state_dict().items() if not name.startswith(head)}
    missing = sorted(expected.keys() - body.keys())
    surplus = sorted(body.keys() - expected.keys())
    misshapen = sorted(n for n in expected.keys() & body.keys() if expected[n].shape != body[n].shape)
    if missing or surplus or misshapen:
        raise ValueError(
            f"the weights {str(source)!r} do not fit {type(model).__name__}: "
            f"missing {missing[:3]}, not expected {surplus[:3]}, of another shape {misshapen[:3]}"
        )
    model.load_state_dict(body, strict=False)
