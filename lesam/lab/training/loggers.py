"""Loggers beside the run folder: TensorBoard, Weights & Biases."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from lesam.lab.config.run import RecordConfig

PACKAGES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",)}
"""Fields of the record that ask for a logger, and the packages of which each needs one."""


def check_loggers(record: RecordConfig) -> None:
    """Refuse a logger whose package is absent, before anything is written."""
    for name, packages in PACKAGES.items():
        if getattr(record, name) not in (None, False) and not any(
            importlib.util.find_spec(package) for package in packages
        ):
            raise ValueError(f"record.{name} needs a package that is not installed: pip install {packages[0]}")


def make_loggers(record: RecordConfig, folder: Path) -> list[Any]:
    """The optional loggers of a run; metrics always go to the run folder, whatever is chosen here."""
    loggers: list[Any] = []
    if record.tensorboard:
        from lightning.fabric.loggers.tensorboard import TensorBoardLogger

        loggers.append(TensorBoardLogger(root_dir=folder, name="tensorboard", version=""))
    if record.wandb is not None:
        from lightning.pytorch.loggers import WandbLogger

        loggers.append(WandbLogger(project=record.wandb, name=folder.name, save_dir=folder))
    return loggers
