"""Results: frozen, carrying the settings they were measured with, saved to JSON or npz, printed as a few lines."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

Setting = str | int | float | bool | None
Progress = Callable[[int, int | None], None]
"""Called as `progress(done, total)` after each unit of work; `total` is None where the end is not known."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Measurement:
    """A measured value with the settings behind it.

    `save` writes JSON or npz by the file's suffix, always whole or not at all; `load` reads both. Fields named in
    `_bulky` (eigenvectors) go to npz only.
    """

    settings: Mapping[str, Setting]
    _bulky: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dictionaries."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in self._bulky}
        return {"type": type(self).__name__} | {name: _plain(value) for name, value in fields.items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`."""
        if content.get("type") != cls.__name__:
            raise ValueError(f"this is a {content.get('type')!r}, not a {cls.__name__}")
        tensors = {f.name: "Tensor" in str(f.type) for f in dataclasses.fields(cls)}
        values = {name: value for name, value in content.items() if name in tensors}
        made: dict[str, Any] = {n: _tensor(v) if tensors[n] else v for n, v in values.items()}
        return cls(**made)

    def save(self, path: str | Path) -> Path:
        """Write to `path` (.json or .npz); a reader sees the old file or the new one, never half of it."""
        path = Path(path)
        if path.suffix == ".json":
            return write_whole(path, json.dumps(self.to_dict(), indent=1).encode())
        if path.suffix == ".npz":
            arrays = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
            tensors = {name: value.numpy() for name, value in arrays.items() if isinstance(value, Tensor)}
            rest = {name: value for name, value in self.to_dict().items() if name not in tensors}
            return write_npz(path, tensors, rest)
        raise ValueError(f"results are saved as .json or .npz, got {path.name!r}")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""
        path = Path(path)
        if path.suffix == ".json":
            return cls.from_dict(json.loads(path.read_text()))
        arrays, rest = read_npz(path)
        bulky: dict[str, Any] = {name: torch.from_numpy(value) for name, value in arrays.items()}
        found = cls.from_dict(rest | {name: None for name in bulky if name not in rest})
        return dataclasses.replace(found, **bulky)

    def lines(self) -> list[str]:
        """The result in words, without the settings."""
        raise NotImplementedError

    def __str__(self) -> str:
        shown = ("samples", "batches", "mode", "parameters", "dtype", "product", "seed")
        settings = ", ".join(f"{name} {self.settings[name]}" for name in shown if name in self.settings)
        return "\n".join([*self.lines(), f"  measured with: {settings}"])


Result = TypeVar("Result", bound=Measurement)


def cached(path: str | Path, kind: type[Result], key: Mapping[str, Setting], measure: Callable[[], Result]) -> Result:
    """The result stored at `path` if it was measured under the same `key`, else a new one, stored there.

    `key` is whatever decides the result (checkpoint, data, options); it is saved among the settings as `key.<name>`.

    Example:
        >>> import tempfile, torch
        >>> from lesam.flatness import HessianOperator, TraceEstimate, cached, trace
        >>> model, x = torch.nn.Linear(3, 1), torch.ones(4, 3)
        >>> def measure():
        ...     print("measuring")
        ...     return trace(HessianOperator(model, torch.nn.functional.mse_loss, [(x, x[:, :1])]), samples=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first = cached(f"{folder}/trace.json", TraceEstimate, {"epoch": 3}, measure)
        ...     again = cached(f"{folder}/trace.json", TraceEstimate, {"epoch": 3}, measure)
        measuring
        >>> first.estimate == again.estimate
        True
    """
    path = Path(path)
    marked = {f"key.{name}": value for name, value in key.items()}
    if path.exists():
        stored = kind.load(path)
        if {name: value for name, value in stored.settings.items() if name.startswith("key.")} == marked:
            return stored
    found = measure()
    found = dataclasses.replace(found, settings=dict(found.settings) | marked)
    found.save(path)
    return found


def write_whole(path: Path, content: bytes) -> Path:
    """Write a file so that a crash leaves the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not a file of `tempfile`, which nobody but its owner could read.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def write_npz(path: Path, arrays: Mapping[str, Any], rest: Mapping[str, Any]) -> Path:
    """Arrays, and everything that is not an array as one JSON text, in one file written whole."""
    from io import BytesIO

    buffer = BytesIO()
    np.savez(buffer, **arrays, json=np.array(json.dumps(rest)))
    return write_whole(path, buffer.getvalue())


def read_npz(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inverse of `write_npz`; refuses pickled content."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files if name != "json"}, json.loads(str(file["json"]))


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return value


def _tensor(value: Any) -> Tensor | None:
    if value is None:
        return None
    flat = value
    while isinstance(flat, list) and flat:
        flat = flat[0]
    return torch.tensor(value, dtype=torch.bool if isinstance(flat, bool) else torch.float64)
