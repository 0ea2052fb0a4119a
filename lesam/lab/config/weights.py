"""Which pretrained weights a run starts from: known by name or by content, wherever the file lies."""

from __future__ import annotations

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


def settled(config: RunConfig) -> RunConfig:
    """A run whose weights are a file, with what is in the file as part of its identity instead of where it lies.

    A file of torchvision's gets torchvision's name, so that it is the same run whether it is downloaded or lies here;
    any other one is known by its content. Without a file nothing changes.
    """
    named = config.model.options.get("weights")
    if not isinstance(named, str) or not Path(named).expanduser().is_file():
        return config
    path = Path(named).expanduser().resolve()
    content = _content(path, path.stat().st_mtime_ns)
    name = TORCHVISION.get(config.model.name, {}).get(content[:8], CONTENT + content[:16])
    model = replace(config.model, options={**config.model.options, "weights": name}, weights_file=str(path))
    return replace(config, model=model)


@lru_cache
def _content(path: Path, changed: int) -> str:
    return sha256(path)
