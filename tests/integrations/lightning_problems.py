"""The small problem as a LightningModule, and a quiet Trainer for it."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.nn import functional as F

from lesam.integrations.lightning import SharpnessAwareCallback

from .problems import network, optimizer


class Module(pl.LightningModule):
    def __init__(self, name: str, dtype: torch.dtype = torch.float64, **options: Any) -> None:
        super().__init__()
        self.network, self.name, self.options = network(dtype=dtype), name, options
        self.calls = 0
        self.seen: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.calls += 1
        loss = F.cross_entropy(self.network(batch[0]), batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def on_train_start(self) -> None:
        torch.manual_seed(2)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append(float(outputs["loss"]))

    def configure_optimizers(self) -> Any:
        return optimizer(self.name, self.network, **self.options)


def trainer(**options: Any) -> pl.Trainer:
    settings: dict[str, Any] = dict(
        callbacks=[SharpnessAwareCallback()],
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    return pl.Trainer(**{**settings, **options})
