"""Which pretrained weights a run starts from: known by name or by content, wherever the file lies."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from lesam.lab.config.run import RunConfig
from lesam.lab.files import sha256

TORCHVISION: dict[str, dict[str, str]] = {
    "imagenet_resnet18": {"f37072fd": "IMAGENET1K_V1"},
    "imagenet_resnet50": {"0676ba61": "IMAGENET1K_V1", "11ad3fa6": "IMAGENET1K_V2"},
    "imagenet_resnet101": {"63fe2227": "IMAGENET1K_V1", "cd907fc2": "IMAGENET1K_V2"},
    "vit_b_16": {"c867db91": "IMAGENET1K_V1"},
}
"""torchvision's weights of each model by the first digits of their file's SHA-256, as in the name of the file."""

CONTENT = "sha256:"
WEIGHTS = "weights.safetensors"
"""The file in the folder of a checkpoint."""


def settled(config: RunConfig) -> RunConfig:
    """A run whose weights are a file, with what is in the file as part of its identity instead of where it lies.

    A file of torchvision's gets torchvision's name, so that it is the same run whether it is downloaded or lies here;
    any other one is known by its content. The folder of a finished run, or of one of its checkpoints, stands for the
    weights in it. Without a file nothing changes.
    """
    named = config.model.options.get("weights")
    if not isinstance(named, str) or not Path(named).expanduser().exists():
        return config
    path = _file(Path(named).expanduser().resolve())
    content = _content(path, path.stat().st_mtime_ns)
    _check_whole(path, content)
    name = TORCHVISION.get(config.model.name, {}).get(content[:8], CONTENT + content[:16])
    model = replace(
        config.model,
        options={**config.model.options, "weights": name},
        weights_file=str(path),
        weights_cell=_cell(path),
    )
    return replace(config, model=model)


def _file(path: Path) -> Path:
    """The file of a state dict, or the one in a checkpoint's folder, or that of a finished run's last checkpoint."""
    if path.is_file():
        return path
    if (path / WEIGHTS).is_file():
        return path / WEIGHTS
    found = sorted(path.glob(f"checkpoints/step-*/{WEIGHTS}"))
    if not found and (any(path.glob("shards/*")) or any(path.glob("checkpoints/step-*/shards/*"))):
        raise ValueError(
            f"model.options.weights={str(path)!r} has its weights in the parts that --strategy fsdp writes before the "
            "end of training: train the run to its end, and name its folder"
        )
    if not found:
        raise ValueError(
            f"model.options.weights={str(path)!r} is a folder without weights: name a file, the folder of a run, or "
            "one of its checkpoints"
        )
    if not (path / "summary.json").is_file():
        raise ValueError(
            f"model.options.weights={str(path)!r} is a run that is not finished: train it to its end, or name one of "
            f"its checkpoints, such as {found[-1].parent}"
        )
    return found[-1]


def _check_whole(path: Path, content: str) -> None:
    """Refuse weights of a checkpoint that are not those that were written."""
    manifest = path.parent / "manifest.json"
    if path.name != WEIGHTS or not manifest.is_file():
        return
    try:
        written = json.loads(manifest.read_text())["sha256"][WEIGHTS]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{manifest} cannot be read ({error}); name another checkpoint of the run") from None
    if written != content:
        raise ValueError(
            f"{path} is damaged: its checksum is not that of {manifest}; name another checkpoint of the run"
        )


def _cell(path: Path) -> str | None:
    """Which run made the weights, without its seed; None for a file that lies in no run's folder."""
    from lesam.lab.config.text import from_json  # which settles weights by this module

    written = path.parents[2] / "config.json" if len(path.parents) > 2 else path
    if path.name != WEIGHTS or not written.is_file():
        return None
    try:
        origin = from_json(written.read_text())
    except ValueError:  # of another version: the content alone tells the weights
        return None
    return f"{origin.cell}/{path.parent.name}"


@lru_cache
def _content(path: Path, changed: int) -> str:
    return sha256(path)
