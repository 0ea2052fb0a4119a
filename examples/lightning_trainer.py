"""Lightning: LE-SAM under a Trainer that accumulates, clips and schedules.

The one thing to add is ``SharpnessAwareCallback()``. The same training in plain torch ends at the same weights.

Run: python examples/lightning_trainer.py
"""

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import lesam
from lesam.integrations.lightning import SharpnessAwareCallback

torch.manual_seed(0)
x = torch.randn(96, 8, dtype=torch.float64)
batches = [(x[i : i + 8], (x[i : i + 8, :2].sum(1) > 0).long()) for i in range(0, 96, 8)]


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).double()


def optimizer(model: nn.Module, **options: float) -> lesam.LESAM:
    base = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    return lesam.LESAM(base, sigma=0.05, rho_max=None, model=model, **options)


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = cross_entropy(self.network(batch[0]), batch[1])
        self.log("loss", loss)  # the clean loss: the perturbed pass does not log
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer(self.network)


if __name__ == "__main__":
    module = Classifier()
    trainer = pl.Trainer(
        callbacks=SharpnessAwareCallback(),
        accumulate_grad_batches=3,  # one perturbation for all three batches
        gradient_clip_val=0.5,  # of the combined gradient; the ascent does not see it
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(batches, batch_size=None))

    # The same by hand.
    model = network()
    opt = optimizer(model, max_norm=0.5)

    def closure(batch: tuple[Tensor, Tensor]) -> Tensor:
        opt.zero_grad()
        loss = cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        return loss

    for _ in range(2):
        for first in range(0, len(batches), 3):
            opt.step([lambda batch=batch: closure(batch) for batch in batches[first : first + 3]])

    for ours, plain in zip(module.network.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-7)
    assert trainer.global_step == opt.steps == 8
    print(f"Lightning and plain torch agree; last loss {float(trainer.callback_metrics['loss']):.4f}")
