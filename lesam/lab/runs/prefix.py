"""A run that starts late in another run's life: the common first part is trained once and copied.

A late switch takes plain base steps before its epoch, whatever the method is. Two such runs that differ only in what
comes after the switch are the same run until then, bit for bit, so the second one may begin from the first one's
checkpoint.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from lesam.lab.config.optimizer import PLAIN, own_settings
from lesam.lab.config.run import RunConfig, identity
from lesam.lab.files import whole_folder, write_atomically
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs.folder import RunFolder


def prefix(config: RunConfig) -> str | None:
    """What decides a run before its switch, as text; None for a run without one."""
    if config.schedule.switch_at is None or config.method in PLAIN:
        return None
    record = identity(config)
    own = own_settings(config.optimizer)
    record["optimizer"] = {
        name: value for name, value in record["optimizer"].items() if name not in {*own, *_PERTURBING}
    }
    record["schedule"] = {name: value for name, value in record["schedule"].items() if name not in _AFTER}
    return json.dumps(record, sort_keys=True)


_PERTURBING = ("method", "batch_norm", "perturbation")
_AFTER = ("switch_at", "carry_momentum", "budget_per", "budget_warmup", "budget_anneal_start")


def start_from_relative(config: RunConfig, runs: Path) -> RunFolder | None:
    """Copy the common part of a finished or running relative, where one kept its checkpoint at the switch.

    Nothing happens when the run has a folder of its own already.

    Returns:
        The relative, None where there was none.
    """
    at, folder = config.schedule.switch_at, RunFolder.of(config, runs)
    if at is None or at == 0 or (folder.path / "config.json").exists():
        return None
    for other in _relatives(config, runs):
        found = checkpoints.epoch_ends(other.checkpoints).get(at)
        if found is not None and found.damage() is None and _copied(other, found, folder):
            return other
    return None


def _relatives(config: RunConfig, runs: Path) -> list[RunFolder]:
    mine = prefix(config)
    found = []
    for path in sorted(runs.glob(f"{config.recipe}-{config.scale}-*-seed{config.seed}-*/config.json")):
        other = RunFolder(path.parent)
        try:
            theirs = other.config()
        except ValueError:  # a folder of an older format is nobody's relative
            continue
        if prefix(theirs) == mine and (theirs.schedule.switch_at or 0) >= (config.schedule.switch_at or 0):
            found.append(other)
    return found


def _copied(source: RunFolder, found: checkpoints.Checkpoint, target: RunFolder) -> bool:
    """Copy checkpoint and rows; what a process that died left of this is replaced.

    False where a relative that is still training deleted the checkpoint meanwhile.
    """
    origin = {"run": source.path.name, "epoch": found.epoch, "step": found.step}
    try:
        with whole_folder(target.checkpoints / found.path.name) as temporary:
            shutil.copytree(found.path, temporary, dirs_exist_ok=True)
        for name in ("metrics.jsonl", "steps.jsonl"):
            write_atomically(target.path / name, (source.path / name).read_bytes())
        target.rewind(epoch=found.epoch)
        write_atomically(target.path / "origin.json", json.dumps(origin, indent=2) + "\n")
    except (OSError, shutil.Error):
        return False
    return True
