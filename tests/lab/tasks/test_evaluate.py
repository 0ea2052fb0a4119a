"""Evaluation leaves every layer in the mode it had."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from lesam.lab.data import PADDING_LABEL
from lesam.lab.runs.folder import RunFolder
from lesam.lab.tasks.evaluate import evaluate
from lesam.lab.tasks.task import entries
from lesam.lab.training.fabric import make_fabric
from lesam.lab.training.interrupt import Interrupt
from lesam.lab.training.loop import Run
from lesam.lab.training.reporter import Silent
from lesam.lab.training.session import Session
from tests.lab.running import smoke


def test_likelihood_and_calibration_error_long_hand() -> None:
    source = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(500, 4, generator=source, dtype=torch.float64)
    labels = torch.randint(0, 4, (500,), generator=source)
    labels[::50] = PADDING_LABEL
    score = evaluate(nn.Identity(), [(logits[:300], labels[:300]), (logits[300:], labels[300:])])

    real = labels != PADDING_LABEL
    probabilities = torch.softmax(logits[real], 1)
    confidence, answers = probabilities.max(1)
    right = (answers == labels[real]).double()
    error = 0.0
    for lower in range(15):
        members = (confidence > lower / 15) & (confidence <= (lower + 1) / 15)
        if members.any():
            gap = confidence[members].mean() - right[members].mean()
            error += float(members.double().mean() * gap.abs())
    likelihood = probabilities[torch.arange(len(answers)), labels[real]].log()
    row = entries("test", score)
    assert row["test_calibration_error"] == pytest.approx(error, rel=1e-9)
    assert error > 0.1
    assert row["test_nll"] == pytest.approx(float(-likelihood.mean()), rel=1e-9)


def test_a_network_that_answers_nan_has_no_calibration() -> None:
    row = entries("test", evaluate(nn.Identity(), [(torch.full((3, 2), torch.nan), torch.zeros(3, dtype=torch.int64))]))
    assert (row["test_nll"], row["test_calibration_error"]) == (None, None)


@pytest.mark.parametrize("fails", [False, True])
def test_a_layer_frozen_in_eval_mode_stays_frozen(fails: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval(), nn.Dropout(), nn.Linear(4, 2))
    batch = torch.zeros(5, 7 if fails else 3), torch.zeros(5, dtype=torch.int64)
    if fails:
        with pytest.raises(RuntimeError):
            evaluate(model, [batch])
    else:
        evaluate(model, [batch])
    assert [module.training for module in model] == [True, False, True, True]
    assert model.training


def test_training_does_not_switch_a_frozen_layer_on(tmp_path: Path) -> None:
    config = smoke("digits", "system.accelerator=cpu", method="lesam")
    session = Session(config, make_fabric(config.system))
    frozen = next(module for module in session.module.modules() if isinstance(module, nn.BatchNorm2d)).eval()
    mean = frozen.running_mean.clone()
    folder = RunFolder.of(config, tmp_path)
    folder.create(config, {})
    with Interrupt() as interrupt:
        Run(session, folder, Silent(), interrupt).finish()
    assert len(folder.metrics()) == 2  # evaluated after each epoch
    for row in folder.metrics():
        assert 0 <= row["test_calibration_error"] <= 1
        assert row["test_nll"] > 0
    assert not frozen.training
    assert torch.equal(frozen.running_mean, mean)
    assert session.module.training
