"""Decoded tensors on disk, valid as long as the files they were made from do not change."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from lesam.lab.files import write_atomically

logger = logging.getLogger(__name__)


def fingerprint(files: Iterable[Path], version: str) -> str:
    """Describe files by path, size and time of change, together with how they are read.

    Args:
        files: The sources.
        version: Changes when their decoding does.
    """
    stats = [(str(file.resolve()), file.stat()) for file in files]
    return json.dumps([version, *((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)])


def read(path: Path, expected: str) -> dict[str, Tensor] | None:
    """Return the tensors stored under a fingerprint, or ``None`` when they are absent, old or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("fingerprint") != expected:
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError) as error:
        logger.warning("%s is damaged (%s) and will be made again", path, error)
        return None
    if metadata.get("checksum") != _checksum(tensors):
        logger.warning("%s is damaged (wrong checksum) and will be made again", path)
        return None
    return tensors


def write(path: Path, expected: str, tensors: dict[str, Tensor]) -> None:
    """Store tensors under a fingerprint, in one step; a folder that cannot be written is left alone."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not written by safetensors, which makes files that only their owner may read.
        write_atomically(path, save(tensors, {"fingerprint": expected, "checksum": _checksum(tensors)}))
    except OSError as error:
        logger.warning("%s could not be written (%s); the files will be decoded again next time", path, error)


def _checksum(tensors: dict[str, Tensor]) -> str:
    value = 0
    for name in sorted(tensors):
        value = zlib.crc32(tensors[name].contiguous().numpy().data, value)
    return f"{value:08x}"
