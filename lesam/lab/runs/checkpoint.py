"""Checkpoints: a folder per saved step, written whole or not at all, verified before it is used.

``checkpoints/step-00000780/`` holds ``weights.safetensors`` (the model and its buffers), ``state.pt`` (the
optimizer and the position in training, loadable with ``weights_only=True``) and ``manifest.json`` (epoch,
step, and the SHA-256 of both files). The folder gets its name by one rename after everything in it is on the
disk, so a killed process leaves at most a folder whose name starts with a dot.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from lesam.lab.files import sha256, sync_file, sync_folder, write_atomically

WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.pt", "manifest.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """One saved moment: ``step`` optimizer steps taken, ``epoch`` whole epochs finished."""

    path: Path
    epoch: int
    step: int
    batch: int
    """Batches of the unfinished epoch already taken; 0 at the end of an epoch."""

    def weights(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers of the model, on the CPU."""
        return load_file(self.path / WEIGHTS)

    def state(self) -> dict[str, Any]:
        """Optimizer state and partial sums of the unfinished epoch."""
        state: dict[str, Any] = torch.load(self.path / STATE, map_location="cpu", weights_only=True)
        return state

    def damage(self) -> str | None:
        """What is wrong with the files, or None."""
        try:
            sums = json.loads((self.path / MANIFEST).read_text())["sha256"]
            for name, expected in sums.items():
                if sha256(self.path / name) != expected:
                    return f"{name} does not have the checksum it was written with"
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"{type(error).__name__}: {error}"
        return None


def save(
    folder: Path,
    *,
    epoch: int,
    step: int,
    batch: int,
    weights: Mapping[str, torch.Tensor],
    state: Mapping[str, Any],
) -> Checkpoint:
    """Write a checkpoint; it exists under its name only when all of it is on the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:08d}"
    temporary = folder / f".{path.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    save_file({name: tensor.detach().contiguous() for name, tensor in weights.items()}, temporary / WEIGHTS)
    torch.save(dict(state), temporary / STATE)
    sums = {}
    for name in (WEIGHTS, STATE):
        sync_file(temporary / name)
        sums[name] = sha256(temporary / name)
    manifest = {"epoch": epoch, "step": step, "batch": batch, "sha256": sums}
    write_atomically(temporary / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    if path.exists():  # a damaged one, or a repetition after a crash between rename and the next step
        shutil.rmtree(path)
    temporary.rename(path)
    sync_folder(folder)
    return Checkpoint(path=path, epoch=epoch, step=step, batch=batch)


def listed(folder: Path) -> list[Checkpoint]:
    """All checkpoints with a readable manifest, oldest first, their files not yet verified."""
    found = []
    for path in sorted(folder.glob("step-*")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            manifest = json.loads((path / MANIFEST).read_text())
            found.append(Checkpoint(path=path, epoch=manifest["epoch"], step=manifest["step"], batch=manifest["batch"]))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def newest_valid(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint whose files are intact, and a sentence about each damaged one met on the way."""
    complaints: list[str] = []
    names = {path.name for path in folder.glob("step-*")}
    readable = {checkpoint.path.name: checkpoint for checkpoint in listed(folder)}
    for name in sorted(names, reverse=True):
        damage = readable[name].damage() if name in readable else "its manifest cannot be read"
        if damage is None:
            return readable[name], complaints
        complaints.append(f"checkpoint {folder / name} is damaged ({damage}); using an older one")
    return None, complaints


def prune(folder: Path, *, keep: int, keep_epochs: tuple[int, ...] = ()) -> None:
    """Delete all but the ``keep`` newest checkpoints and those at the end of the epochs to keep."""
    for checkpoint in _older(folder, keep):
        if not (checkpoint.batch == 0 and checkpoint.epoch in keep_epochs):
            shutil.rmtree(checkpoint.path)
    for leftover in folder.glob(".step-*.tmp"):
        if not leftover.name.endswith(f".{os.getpid()}.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)


def _older(folder: Path, keep: int) -> Iterator[Checkpoint]:
    yield from listed(folder)[:-keep]
