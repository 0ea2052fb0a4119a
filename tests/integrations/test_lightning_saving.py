"""What Lightning validates and saves is the last step, wherever the one under way stands; and the Tuner works."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.tuner import Tuner
from torch import Tensor, nn
from torch.nn import functional as F

from lesam.integrations.lightning import SharpnessAwareCallback

from .lightning_problems import Module, trainer
from .problems import assert_resumes, assert_same, closure, data, loader, network, optimizer, train, windows

pytestmark = pytest.mark.filterwarnings("ignore")
CALLS_UNTIL_STEP_THREE = {"lesamplus": 6, "friendlysam": 6, "s2sam": 3, "msam": 3}
BOTH_KINDS = pytest.mark.parametrize("name", CALLS_UNTIL_STEP_THREE)


class Validating(Module):
    """Notes the model at each validation; BatchNorm and dropout are in evaluation mode there."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.validated: list[dict[str, Tensor]] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append(copy.deepcopy(self.network.state_dict()))
        self.log("val_loss", F.cross_entropy(self.network(batch[0]), batch[1]) - len(self.validated))


def after_steps(name: str, steps: int, k: int, **options: Any) -> nn.Module:
    plain = network()
    train(optimizer(name, plain, **options), plain, windows(data(6), k)[:steps])
    return plain


@BOTH_KINDS
@pytest.mark.parametrize("perturbation", ["global", "local"])
def test_validation_and_checkpoints_between_accumulated_batches(name: str, perturbation: str, tmp_path: Path) -> None:
    """Windows of three, validation after two batches, and after four: each sees, and saves, what a step has left."""
    module = Validating(name, perturbation=perturbation)
    checkpoints = ModelCheckpoint(tmp_path, filename="{step}", monitor="val_loss", save_top_k=-1, save_last=False)
    pl_trainer = trainer(
        callbacks=[SharpnessAwareCallback(), checkpoints],
        enable_checkpointing=True,
        accumulate_grad_batches=3,
        val_check_interval=2,
        num_sanity_val_steps=0,
    )
    pl_trainer.fit(module, loader(data(6)), loader(data(1)))
    plain = [after_steps(name, steps, 3, perturbation=perturbation) for steps in (0, 1, 2)]
    assert len(module.validated) == 3
    for seen, expected in zip(module.validated, plain, strict=True):
        torch.testing.assert_close(seen, dict(expected.state_dict()), rtol=1e-6, atol=1e-7)
    assert_same(module.network, plain[2], rtol=1e-6, atol=1e-7)
    saved = {path.stem: torch.load(path, weights_only=False) for path in tmp_path.glob("*.ckpt")}
    assert sorted(saved) == ["step=1", "step=2"]  # it saves nothing before a step was taken
    for steps, expected in list(enumerate(plain))[1:]:
        weights = {key.removeprefix("network."): v for key, v in saved[f"step={steps}"]["state_dict"].items()}
        torch.testing.assert_close(weights, dict(expected.state_dict()), rtol=1e-6, atol=1e-7)
        assert saved[f"step={steps}"]["optimizer_states"][0]["param_groups"][0]["lesam_step"] == steps


class OneBatchEpochs(Module):
    """An epoch is one batch: Lightning can resume before the batch at which it was stopped. No random numbers."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.network[3] = nn.Identity()
        self.interrupt: Callable[[int], None] = lambda calls: None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.interrupt(self.calls)
        return loss


@BOTH_KINDS
def test_slurm_requeues_from_the_last_step(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal arrives between forward and backward of a perturbed pass, saves, and disturbs nothing."""
    job = {"NTASKS": "1", "JOB_ID": "7", "PROCID": "0", "LOCALID": "0", "JOB_NAME": "training"}
    for variable, value in job.items():
        monkeypatch.setenv(f"SLURM_{variable}", value)
    monkeypatch.setenv("PATH", str(tmp_path))  # no scontrol there

    def run(module: OneBatchEpochs, part: str, _: Any) -> None:
        calls = CALLS_UNTIL_STEP_THREE[name]
        if part == "first":
            module.interrupt = lambda now: os.kill(os.getpid(), signal.SIGUSR1) if now == calls else None
        root = tmp_path / ("whole" if part == "whole" else "job")
        pl_trainer = trainer(
            max_epochs=3 if part == "first" else 6,
            plugins=[SLURMEnvironment(auto_requeue=True)],
            default_root_dir=root,
        )
        before = signal.getsignal(signal.SIGUSR1)
        pl_trainer.fit(module, loader(data(1)))
        assert signal.getsignal(signal.SIGUSR1) == before
        if part == "first":
            assert [path.name for path in root.glob("*.ckpt")] == ["hpc_ckpt_1.ckpt"]
            undisturbed = OneBatchEpochs(name)
            trainer(max_epochs=3).fit(undisturbed, loader(data(1)))
            assert_same(module, undisturbed, rtol=0, atol=0)
        if part == "second":
            assert module.calls == calls // 3 * 4, "four of six steps were left"

    assert_resumes(lambda: OneBatchEpochs(name), run)  # type: ignore[arg-type]


@BOTH_KINDS
def test_a_checkpoint_of_an_exception_resumes_from_the_last_step(name: str, tmp_path: Path) -> None:
    def fail(now: int) -> None:
        if now == CALLS_UNTIL_STEP_THREE[name]:
            raise ArithmeticError("between forward and backward")

    def run(module: OneBatchEpochs, part: str, _: Any) -> None:
        pl_trainer = trainer(
            callbacks=[OnExceptionCheckpoint(tmp_path), SharpnessAwareCallback()],
            enable_checkpointing=True,
            max_epochs=6,
        )
        if part == "first":
            module.interrupt = fail
            with pytest.raises(ArithmeticError):
                pl_trainer.fit(module, loader(data(1)))
        else:
            pl_trainer.fit(
                module, loader(data(1)), ckpt_path=tmp_path / "on_exception.ckpt" if part == "second" else None
            )
        assert pl_trainer.global_step == (2 if part == "first" else 6)

    assert_resumes(lambda: OneBatchEpochs(name), run)  # type: ignore[arg-type]


def test_the_tuner_finds_a_learning_rate_with_accumulation(tmp_path: Path) -> None:
    """It runs without the Trainer's callbacks: the same steps as by hand at the rates it tries, and none is kept."""
    tuned, plain = Module("lesamplus"), network()
    pl_trainer = trainer(accumulate_grad_batches=2, gradient_clip_val=0.5, default_root_dir=tmp_path)
    found = Tuner(pl_trainer).lr_find(
        tuned, loader(data(12)), min_lr=0.01, max_lr=1.0, num_training=6, early_stop_threshold=None, update_attr=False
    )
    assert found is not None
    assert_same(tuned.network, plain, rtol=0, atol=0)

    opt = optimizer("lesamplus", plain, max_norm=0.5)
    torch.manual_seed(2)
    plain.train()
    losses = []
    for window, rate in zip(windows(data(12), 2), found.results["lr"], strict=True):
        opt.param_groups[0]["lr"] = rate
        losses.append(float(opt.step([closure(opt, plain, batch) for batch in window])))
    assert [sum(pair) for pair in windows(tuned.seen, 2)] == pytest.approx(losses, rel=1e-6)

    again = Module("lesamplus")
    pl_trainer.fit(tuned, loader(data(6)))
    trainer(accumulate_grad_batches=2, gradient_clip_val=0.5).fit(again, loader(data(6)))
    assert_same(tuned.network, again.network, rtol=0, atol=0)


def test_the_learning_rate_monitor_shows_the_method(tmp_path: Path) -> None:
    monitor = LearningRateMonitor()
    pl_trainer = trainer(callbacks=[SharpnessAwareCallback(), monitor], logger=CSVLogger(tmp_path), log_every_n_steps=1)
    pl_trainer.fit(Module("lesam"), loader(data(2)))
    assert list(monitor.lrs) == ["lr-LESAM"]
    assert type(pl_trainer.optimizers[0]).__name__ == "LESAM"
