"""Loggers: TensorBoard, MLflow and W&B beside each other, all with local files, under a Lightning Trainer.

The frameworks' own loggers need nothing from us: they see clean losses. What the optimizer knows of its last step
(radius, rise of the loss) is in ``opt.last``.

Run: python examples/loggers.py
"""

import os
import sqlite3
import tempfile
from pathlib import Path

os.environ["WANDB_MODE"] = "offline"  # `wandb sync` sends it later
os.environ["WANDB_SILENT"] = "true"

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import lesam
from lesam.integrations.lightning import SharpnessAwareCallback

torch.manual_seed(0)
x = torch.randn(96, 8)
batches = [(x[i : i + 8], (x[i : i + 8, :2].sum(1) > 0).long()) for i in range(0, 96, 8)]


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = cross_entropy(self.network(batch[0]), batch[1])
        self.log("loss", loss)  # the clean loss: the perturbed pass does not log
        return loss

    def on_train_batch_end(self, *_: object) -> None:
        last = self.optimizers().optimizer.last
        self.log_dict({"rho": last.rho, "rise": last.perturbed_loss - last.loss})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return lesam.LESAM(torch.optim.SGD(self.parameters(), lr=0.5), sigma=0.05, rho_max=1.0, model=self.network)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        loggers = [
            TensorBoardLogger(folder, name="tensorboard", version=""),
            MLFlowLogger("example", tracking_uri=f"sqlite:///{folder / 'mlflow.db'}"),
            WandbLogger("run", save_dir=folder, project="example"),
        ]
        trainer = pl.Trainer(
            callbacks=SharpnessAwareCallback(),
            logger=loggers,
            log_every_n_steps=1,
            max_epochs=2,
            accelerator="cpu",
            devices=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Classifier(), DataLoader(batches, batch_size=None))
        loggers[-1].experiment.finish()

        # What each of them wrote.
        events = EventAccumulator(str(folder / "tensorboard")).Reload()
        radii = [event.value for event in events.Scalars("rho")]
        with sqlite3.connect(folder / "mlflow.db") as store:
            query = "SELECT value FROM metrics WHERE key = 'rho' ORDER BY step"
            stored = [value for (value,) in store.execute(query)]
        (sent,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
        assert len(radii) == trainer.global_step == 24
        torch.testing.assert_close(torch.tensor(radii), torch.tensor(stored))
        assert sent.stat().st_size > 0
        print(f"{len(radii)} radii from {min(radii):.3f} to {max(radii):.3f} in TensorBoard and MLflow, a file for W&B")
