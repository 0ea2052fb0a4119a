"""Checkpoints: a folder per saved step, written whole or not at all, verified before it is used.

``checkpoints/step-00000780/`` holds ``weights.safetensors`` (the model and its buffers), ``state.pt`` (the
optimizer and the position in training, loadable with ``weights_only=True``) and ``manifest.json`` (epoch,
step, and the SHA-256 of all files). A model that is sharded has ``shards/`` instead of the weights, with the
tensors of model and optimizer as each process holds them, and the weights beside them at the end of training. The
folder gets its name by one rename after everything in it is on the disk, so a killed process leaves at most a folder
whose name starts with a dot.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from lesam.lab.config.weights import WEIGHTS
from lesam.lab.files import is_temporary, sha256, whole_folder
from lesam.lab.runs import shards

STATE, MANIFEST, SHARDS = "state.pt", "manifest.json", "shards"
MODEL, OPTIMIZER = "model/", "optimizer/"
"""What the names of tensors in shards begin with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """One saved moment: ``step`` optimizer steps taken, ``epoch`` whole epochs finished."""

    path: Path
    epoch: int
    step: int
    batch: int
    """Batches of the unfinished epoch already taken; 0 at the end of an epoch."""

    @property
    def shards(self) -> Path | None:
        """The folder of what each process held; None where the model was not sharded."""
        return found if (found := self.path / SHARDS).is_dir() else None

    def weights(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers of the model, on the CPU."""
        if (self.path / WEIGHTS).exists() or self.shards is None:
            return load_file(self.path / WEIGHTS)
        return shards.whole(self.shards, MODEL)

    def state(self) -> dict[str, Any]:
        """Optimizer state and partial sums of the unfinished epoch."""
        state: dict[str, Any] = torch.load(self.path / STATE, map_location="cpu", weights_only=True)
        return state

    def weights_sha256(self) -> str:
        """Checksum of the weights, by which answers about them are kept."""
        if (self.path / WEIGHTS).exists() or self.shards is None:
            return sha256(self.path / WEIGHTS)
        sums = "".join(sha256(file) for file in sorted(self.shards.iterdir()))
        return hashlib.sha256(sums.encode()).hexdigest()

    def damage(self) -> str | None:
        """What is wrong with the files, or None."""
        try:
            sums = dict(json.loads((self.path / MANIFEST).read_text())["sha256"])
            for name in _files(self.path):  # whatever the manifest lists, these are the files that are read
                if sha256(self.path / name) != sums.pop(name):
                    return f"{name} does not have the checksum it was written with"
            if sums:
                return f"{', '.join(sums)} is missing"
        except KeyError as error:
            return f"its manifest has no checksum of {error.args[0]}"
        except (OSError, ValueError, TypeError) as error:
            return f"{type(error).__name__}: {error}"
        return None


def save(
    folder: Path,
    *,
    epoch: int,
    step: int,
    batch: int,
    state: Mapping[str, Any],
    weights: Mapping[str, torch.Tensor] | None = None,
    parts: Path | None = None,
) -> Checkpoint:
    """Write a checkpoint; it exists under its name only when all of it is on the disk.

    Of a sharded model ``parts`` is the folder in which all processes have written theirs; it becomes a part of the
    checkpoint.
    """
    path = folder / f"step-{step:08d}"
    # One of that name is a damaged one, or a repetition after a crash between the rename and the next step.
    with whole_folder(path) as temporary:
        try:
            if parts is not None:
                parts.rename(temporary / SHARDS)
            if weights is not None:
                save_file({name: tensor.detach().contiguous() for name, tensor in weights.items()}, temporary / WEIGHTS)
            torch.save(dict(state), temporary / STATE)
        except (RuntimeError, SafetensorError) as error:  # both hide the system's error: a full disk, mostly
            free = shutil.disk_usage(temporary).free
            reason = f"{str(error).splitlines()[0]}; the disk has {free / 1e9:.2f} GB left"
            raise OSError(f"the checkpoint {path} could not be written ({reason}); older ones are untouched") from error
        sums = {name: sha256(temporary / name) for name in _files(temporary)}
        manifest = {"epoch": epoch, "step": step, "batch": batch, "sha256": sums}
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return Checkpoint(path=path, epoch=epoch, step=step, batch=batch)


def _files(path: Path) -> list[str]:
    """Names of the files that a checkpoint is read from; weights that are nowhere are among them, to be missed."""
    parts = [f"{SHARDS}/{file.name}" for file in sorted(path.glob(f"{SHARDS}/*"))]
    return [STATE, *parts, *([WEIGHTS] if not parts or (path / WEIGHTS).exists() else [])]


def listed(folder: Path) -> list[Checkpoint]:
    """All checkpoints with a readable manifest, oldest first, their files not yet verified."""
    found = []
    for path in sorted(folder.glob("step-*")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            manifest = json.loads((path / MANIFEST).read_text())
            found.append(Checkpoint(path=path, epoch=manifest["epoch"], step=manifest["step"], batch=manifest["batch"]))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def newest_valid(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint whose files are intact, and a sentence about each damaged one met on the way.

    The sentences end with what follows: an older one is used, or none is left.
    """
    complaints: list[str] = []
    names = {path.name for path in folder.glob("step-*")}
    readable = {checkpoint.path.name: checkpoint for checkpoint in listed(folder)}
    for name in sorted(names, reverse=True):
        damage = readable[name].damage() if name in readable else "its manifest cannot be read"
        if damage is None:
            return readable[name], [f"{complaint}; using an older one" for complaint in complaints]
        complaints.append(f"checkpoint {folder / name} is damaged ({damage})")
    return None, [f"{complaint}; none is left" for complaint in complaints]


def epoch_ends(folder: Path) -> dict[int, Checkpoint]:
    """The checkpoints at the end of an epoch, by the number of finished epochs; their files not yet verified."""
    return {checkpoint.epoch: checkpoint for checkpoint in listed(folder) if checkpoint.batch == 0}


def find(folder: Path, epoch: int | None = None) -> Checkpoint:
    """The checkpoint after a number of finished epochs, by default the last such one, with its files verified.

    Raises:
        ValueError: There is none (the sentence lists those that exist), or it is damaged.
    """
    ends = epoch_ends(folder)
    if not ends:
        raise ValueError(f"{folder.parent} has no checkpoint at the end of an epoch; `lesam train` writes them")
    if epoch is not None and epoch not in ends:
        raise ValueError(
            f"{folder.parent} has no checkpoint after {epoch} epochs; it has those after {_spelled(ends)}. "
            f"Train with --set record.keep_epochs={epoch} to keep it"
        )
    checkpoint = ends[max(ends) if epoch is None else epoch]
    if (damage := checkpoint.damage()) is not None:
        raise ValueError(f"{checkpoint.path} is damaged ({damage}); this run has checkpoints after {_spelled(ends)}")
    return checkpoint


def _spelled(epochs: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(epochs)))


def prune(folder: Path, *, keep: int, keep_epochs: tuple[int, ...] = ()) -> None:
    """Delete all but the ``keep`` newest checkpoints and those at the end of the epochs to keep."""
    for checkpoint in listed(folder)[:-keep]:
        if not (checkpoint.batch == 0 and checkpoint.epoch in keep_epochs):
            shutil.rmtree(checkpoint.path)
    for leftover in filter(is_temporary, folder.iterdir()):
        shutil.rmtree(leftover, ignore_errors=True)
