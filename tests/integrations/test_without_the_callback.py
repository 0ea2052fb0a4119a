"""A Lightning Trainer that changes gradients inside its closure is refused without the callback that does it right."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn

import lesam


class Plain(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> lesam.SharpnessAware:
        return lesam.LESAM(torch.optim.SGD(self.parameters(), lr=0.1), sigma=0.01)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gradient_clip_val": 0.5}, r"gradient_clip_val=0\.5.*SharpnessAwareCallback"),
        ({"accumulate_grad_batches": 2}, r"accumulate_grad_batches=2.*SharpnessAwareCallback"),
    ],
)
def test_clipping_and_accumulation_need_the_callback(options: dict[str, Any], words: str, tmp_path):
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 3)), batch_size=2)
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        **options,
    )
    with pytest.raises(RuntimeError, match=words):
        trainer.fit(Plain(), data)
