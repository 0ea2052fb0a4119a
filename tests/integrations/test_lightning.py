"""A LightningModule with a sharpness-aware optimizer trains to the weights of the plain loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.nn import functional as F

from lesam.integrations.lightning import SharpnessAwareCallback

from .lightning_problems import Module, trainer
from .problems import (
    METHODS,
    assert_resumes,
    assert_same,
    data,
    loader,
    muon_and_adamw,
    network,
    optimizer,
    train,
    windows,
)
from .processes import assert_loaded, run_script

pytestmark = pytest.mark.filterwarnings("ignore")
EXACT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("with_callback", [True, False])
def test_plain(name: str, with_callback: bool) -> None:
    batches, module, plain = data(6), Module(name), network()
    trainer(**({} if with_callback else {"callbacks": None})).fit(module, loader(batches))
    losses = train(optimizer(name, plain), plain, windows(batches, 1))
    assert_same(module.network, plain, **EXACT)
    if with_callback:
        assert module.seen == pytest.approx(losses) or name in ("msam", "s2sam")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("perturbation", ["global", "local"])
def test_accumulation_and_clipping(name: str, perturbation: str) -> None:
    """Seven batches in windows of three, three and one: the last one is divided by three, too, by Lightning."""
    if name == "eigensam" and perturbation == "global":
        pytest.skip("the Trainer refreshes on the first batch of a window, for want of the others")
    batches, module, plain = data(7), Module(name, perturbation=perturbation), network()
    trainer(accumulate_grad_batches=3, gradient_clip_val=0.5).fit(module, loader(batches))
    train(optimizer(name, plain, perturbation=perturbation, max_norm=0.5), plain, windows(batches, 3))
    assert_same(module.network, plain, rtol=1e-6, atol=1e-6)


def test_dropout_is_replayed_though_the_loader_draws_random_numbers_too() -> None:
    """At radius zero the second pass must give the first gradient again, and LE-SAM+ be the base optimizer."""

    class Noisy(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            x, y = data(6)[index]
            return x + 0.1 * torch.randn_like(x), y

    class Plain(Module):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)

    ours, plain = Module("lesamplus", sigma=0.0, alpha=5.0), Plain("lesamplus")
    for module, callbacks in ((ours, [SharpnessAwareCallback()]), (plain, None)):
        torch.manual_seed(4)
        trainer(callbacks=callbacks, accumulate_grad_batches=3).fit(module, loader(Noisy()))  # type: ignore[arg-type]
    assert_same(ours.network, plain.network, **EXACT)


def test_clipping_by_value() -> None:
    """Of the combined gradient, which LE-SAM+ has and neither pass."""
    batches, module, plain = data(5), Module("lesamplus"), network()
    trainer(gradient_clip_val=0.05, gradient_clip_algorithm="value").fit(module, loader(batches))
    opt = optimizer("lesamplus", plain)
    torch.manual_seed(2)
    for x, y in batches:
        for one_pass in (opt.clean, opt.perturbed):
            with one_pass():
                F.cross_entropy(plain(x), y).backward()
        torch.nn.utils.clip_grad_value_(plain.parameters(), 0.05)
        opt.step()
    assert_same(module.network, plain, **EXACT)


def test_bf16_mixed() -> None:
    batches, module, plain = data(6, dtype=torch.float32), Module("lesam", torch.float32), network(torch.float32)
    trainer(precision="bf16-mixed", accumulate_grad_batches=2).fit(module, loader(batches))
    train(optimizer("lesam", plain), plain, windows(batches, 2), bf16=True)
    assert_same(module.network, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["lesam", "lesamplus", "gsam"])
@pytest.mark.parametrize("perturbation", ["global", "local"])
def test_fp16_mixed_with_accumulation_and_clipping(name: str, perturbation: str) -> None:
    """The scale (1024 here) would make LE-SAM's radius a thousandth of what it should be."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    batches = data(6, dtype=torch.float32)
    module, plain = Module(name, torch.float32, perturbation=perturbation), network(torch.float32)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    trainer(plugins=[plugin], accumulate_grad_batches=2, gradient_clip_val=0.5).fit(module, loader(batches))
    train(optimizer(name, plain, perturbation=perturbation, max_norm=0.5), plain, windows(batches, 2))
    assert_same(module.network, plain, rtol=2e-2, atol=1e-2)


def test_an_overflow_skips_the_whole_step() -> None:
    """A scale that overflows fp16: no step, statistics untouched, and the scale goes down once."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    module, plain = Module("lesamplus", torch.float32), network(torch.float32)
    trainer(plugins=[MixedPrecision("16-mixed", "cpu", scaler)]).fit(module, loader(data(1, dtype=torch.float32)))
    assert_same(module.network, plain, rtol=0, atol=0)
    assert scaler.get_scale() == 2.0**39


class Scheduled(Module):
    def configure_optimizers(self) -> Any:
        opt = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=6)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@pytest.mark.parametrize("name", ["lesam", "friendlysam", "eigensam"])
def test_schedule_checkpoint_and_resume(name: str, tmp_path: Path) -> None:
    """One of two epochs, a checkpoint, all objects anew."""

    def run(module: Module, part: str, begin: Callable[[], None]) -> None:
        module.on_train_start = begin  # type: ignore[method-assign]
        pl_trainer = trainer(max_epochs=1 if part == "first" else 2, accumulate_grad_batches=2)
        pl_trainer.fit(module, loader(data(6)), ckpt_path=tmp_path / "half.ckpt" if part == "second" else None)
        if part == "first":
            pl_trainer.save_checkpoint(tmp_path / "half.ckpt")
        else:
            assert pl_trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0)

    assert_resumes(lambda: Scheduled(name), run)  # type: ignore[arg-type]


def test_what_is_logged_and_counted_is_the_clean_pass() -> None:
    module, plain = Module("lesam"), network()
    watched = trainer()
    watched.fit(module, loader(data(4)))
    losses = train(optimizer("lesam", plain), plain, windows(data(4), 1))
    assert module.calls == 8
    assert float(watched.callback_metrics["loss_step"]) == pytest.approx(losses[-1])
    assert float(watched.callback_metrics["loss_epoch"]) == pytest.approx(sum(losses) / 4)
    assert watched.global_step == 4


def test_hooks_see_the_combined_gradient_once() -> None:
    seen = []

    class Watching(Module):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            seen.append([p.grad.clone() for p in self.network.parameters()])

    plain = network()
    trainer(accumulate_grad_batches=2).fit(Watching("lesamplus"), loader(data(4)))
    opt = optimizer("lesamplus", plain)
    train(opt, plain, windows(data(4), 2))
    assert len(seen) == 2
    torch.testing.assert_close(seen[-1], [p.grad for p in plain.parameters()])


def test_batches_that_training_step_declines() -> None:
    """None for a step's only batch means no step, and nothing is left behind."""

    class Declining(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None if batch_idx == 1 else super().training_step(batch, batch_idx)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None: ...

    batches, module, plain = data(4), Declining("friendlysam"), network()
    trainer().fit(module, loader(batches))
    train(optimizer("friendlysam", plain), plain, windows([batches[0], *batches[2:]], 1))
    assert_same(module.network, plain, **EXACT)


@pytest.mark.parametrize("name", ["lesamplus", "s2sam"])
def test_batches_of_a_window_that_training_step_declines(name: str) -> None:
    """Each counts as a loss of zero, as with any optimizer: here the second of a window, and the last of another."""

    class Declining(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None if batch_idx in (1, 5) else super().training_step(batch, batch_idx)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            weights.append(self.network[0].weight.clone())

    weights: list[Tensor] = []
    batches, module, plain = data(6), Declining(name), network()
    trainer(accumulate_grad_batches=3).fit(module, loader(batches))
    opt = optimizer(name, plain)
    torch.manual_seed(2)
    for window in ((batches[0], batches[2]), (batches[3], batches[4])):
        for one_pass in (opt.clean, opt.perturbed)[2 - opt.passes :]:
            with one_pass():
                for x, y in window:
                    (F.cross_entropy(plain(x), y) / 3).backward()
        opt.step()
    assert_same(module.network, plain, **EXACT)
    assert torch.equal(weights[0], weights[1])  # those of the last step, and nothing perturbed


def test_an_optimizer_step_of_ones_own_that_calls_the_closure_itself() -> None:
    class Own(Module):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
            optimizer_closure()
            optimizer.step()

    module, plain = Own("lesamplus"), network()
    trainer(accumulate_grad_batches=2, gradient_clip_val=0.5).fit(module, loader(data(6)))
    train(optimizer("lesamplus", plain, max_norm=0.5), plain, windows(data(6), 2))
    assert_same(module.network, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["friendlysam", "s2sam"])
def test_an_epoch_cut_short_drops_what_it_has_begun(name: str) -> None:
    """Nothing of its third batch is left for the next epoch, neither gradients nor statistics."""

    class Short(Module):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 3 else None

    module, plain = Short(name), network(dropout=0.0)
    module.network[3] = nn.Identity()
    trainer(accumulate_grad_batches=2, max_epochs=2).fit(module, loader(data(6)))
    train(optimizer(name, plain), plain, windows(data(6)[:2], 2) * 2)
    assert_same(module.network, plain, **EXACT)


def test_several_bases(tmp_path: Path) -> None:
    """Muon for matrices, AdamW for the rest: one perturbation, with accumulation, clipping, and a resumed run."""

    class Pair(Scheduled):
        def configure_optimizers(self) -> Any:
            opt = muon_and_adamw("lesamplus", self.network)
            return [opt], [torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=2)]

    def run(module: Pair, part: str, begin: Callable[[], None]) -> None:
        module.on_train_start = begin  # type: ignore[method-assign]
        callbacks = [SharpnessAwareCallback(), LearningRateMonitor()]
        pl_trainer = trainer(
            max_epochs=1 if part == "first" else 2,
            accumulate_grad_batches=2,
            gradient_clip_val=0.5,
            callbacks=callbacks,
            logger=CSVLogger(tmp_path),
            log_every_n_steps=1,
        )
        pl_trainer.fit(module, loader(data(6)), ckpt_path=tmp_path / "half.ckpt" if part == "second" else None)
        if part == "first":
            pl_trainer.save_checkpoint(tmp_path / "half.ckpt")
            plain = network()
            train(muon_and_adamw("lesamplus", plain, max_norm=0.5), plain, windows(data(6), 2))
            assert_same(module.network, plain, rtol=1e-6, atol=1e-6)
        assert list(callbacks[1].lrs) == ["lr-LESAMPlus/pg1", "lr-LESAMPlus/pg2"]  # type: ignore[attr-defined]

    assert_resumes(lambda: Pair("lesamplus"), run)  # type: ignore[arg-type]


def test_an_error_in_the_second_pass_leaves_the_weights() -> None:
    class Failing(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.calls == 5:
                raise ArithmeticError("in the perturbed pass")
            return super().training_step(batch, batch_idx)

    module, plain = Failing("lesam"), network()
    with pytest.raises(ArithmeticError):
        trainer(accumulate_grad_batches=2).fit(module, loader([*data(2), *data(2, seed=5)]))
    assert module.calls == 5
    plain = network()
    train(optimizer("lesam", plain), plain, windows(data(2), 2))
    assert_same(module.network, plain, rtol=0, atol=0)


def test_a_plain_optimizer_is_refused() -> None:
    class Plain(Module):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with pytest.raises(ValueError, match=r"lesam.LESAM\(SGD"):
        trainer().fit(Plain("lesam"), loader(data(1)))


def test_manual_optimisation_with_contexts() -> None:
    class Manual(Module):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            opt = self.optimizers()
            for one_pass in (opt.clean, opt.perturbed):
                with one_pass():
                    self.manual_backward(F.cross_entropy(self.network(batch[0]), batch[1]))
            opt.step()

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None: ...

    module, plain = Manual("lesamplus"), network()
    trainer().fit(module, loader(data(4)))
    train(optimizer("lesamplus", plain), plain, windows(data(4), 1))
    assert_same(module.network, plain, **EXACT)


TWO_PROCESSES = """
import sys, torch
import lightning.pytorch as pl
from torch import Tensor, nn
from torch.nn import functional as F
from lesam.integrations.lightning import SharpnessAwareCallback
from tests.integrations.problems import data, loader, network, optimizer


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network(dropout=0.0, batchnorm=False)

    def training_step(self, batch, batch_idx):
        x, y = batch
        mine = slice(self.global_rank * 4, self.global_rank * 4 + 4)
        return F.cross_entropy(self.network(x[mine]), y[mine])

    def configure_optimizers(self):
        return optimizer(sys.argv[3], self.network, perturbation=sys.argv[2])


if __name__ == "__main__":
    torch.set_num_threads(1)
    trainer = pl.Trainer(
        callbacks=SharpnessAwareCallback(), max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False, accumulate_grad_batches=2, gradient_clip_val=0.5,
    )
    module = Module()
    trainer.fit(module, loader(data(6, size=8)))
    if trainer.is_global_zero:
        torch.save(module.network.state_dict(), sys.argv[1])
"""


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    ("perturbation", "name"), [("global", "lesamplus"), ("local", "lesamplus"), ("local", "gsam"), ("local", "msam")]
)
def test_two_processes(perturbation: str, name: str, tmp_path: Path) -> None:
    """Global: one process with the whole batch. Local: one with twice as many micro-batches, one of each worker's."""
    run_script(TWO_PROCESSES, tmp_path / "state.pt", perturbation, name)
    plain = network(dropout=0.0, batchnorm=False)
    opt = optimizer(name, plain, perturbation=perturbation, max_norm=0.5)
    if perturbation == "global":
        train(opt, plain, windows(data(6, size=8), 2))
    else:
        train(opt, plain, windows(data(12, size=4), 4))
    assert_loaded(tmp_path / "state.pt", plain)
