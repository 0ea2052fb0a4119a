"""Evaluation leaves every layer in the mode it had."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from lesam.lab.runs.folder import RunFolder
from lesam.lab.tasks.evaluate import evaluate
from lesam.lab.training.fabric import make_fabric
from lesam.lab.training.interrupt import Interrupt
from lesam.lab.training.loop import Run
from lesam.lab.training.reporter import Silent
from lesam.lab.training.session import Session
from tests.lab.running import smoke


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
    assert not frozen.training
    assert torch.equal(frozen.running_mean, mean)
    assert session.module.training
