"""Loggers beside the run folder: TensorBoard, Weights & Biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lesam.lab.config.run import RecordConfig


def make_loggers(record: RecordConfig, folder: Path) -> list[Any]:
    """The optional loggers of a run; metrics always go to the run folder, whatever is chosen here."""
    loggers: list[Any] = []
    if record.tensorboard:
        from lightning.fabric.loggers.tensorboard import TensorBoardLogger

        loggers.append(TensorBoardLogger(root_dir=folder, name="tensorboard", version=""))
    if record.wandb is not None:
        try:
            from lightning.pytorch.loggers import WandbLogger
        except ImportError as error:
            raise RuntimeError("record.wandb needs Weights & Biases: pip install wandb") from error
        loggers.append(WandbLogger(project=record.wandb, name=folder.name, save_dir=folder))
    return loggers
