"""A run that a perturbation keeps at the uniform prediction is named while it happens, and a slow start is not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lesam.lab.config import RunConfig
from lesam.lab.runs.folder import RunFolder
from lesam.lab.tasks.metrics import Seen, summarise
from lesam.lab.training.collapse import CollapseWatch
from lesam.lab.training.loop import train
from tests.lab.running import Listener, smoke

UNIFORM = math.log(10)


def signals(method: str, *changes: str) -> RunConfig:
    """A hundred signals of MNIST-1D in batches of two: 50 steps an epoch."""
    fixed = ("data.batch_size=2", "system.accelerator=cpu", "optimizer.lr=0.008", "schedule.epochs=7")
    return smoke("mnist1d-mlp", *fixed, *changes, method=method)


def collapses(config: RunConfig, runs: Path) -> list[str]:
    """What a run says of its collapse."""
    listener = Listener()
    train(config, runs=runs, progress=listener)
    return [text for text in listener.messages if text.startswith("collapsed")]


def row(epoch: int, **changes: Any) -> dict[str, Any]:
    """An epoch of 50 steps of a network that guesses."""
    found = {"epoch": epoch, "step": 50 * (epoch + 1), "lr": 0.1, "train_loss": UNIFORM, "train_accuracy": 0.1}
    return {**found, "rho": 0.4, "sharpness": 0.1, "overrun": 0.0, **changes}


def spoke_after(rows: list[dict[str, Any]], uniform: float | None = UNIFORM) -> list[int]:
    """The epochs after which the watch spoke."""
    watch = CollapseWatch(uniform)
    return [one["epoch"] for one in rows if watch.look(one) is not None]


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("sam", ("optimizer.rho=3.2",)),
        ("lesam", ("optimizer.sigma=20.0", "schedule.budget_anneal_start=none")),
    ],
)
def test_a_collapse_is_said_once_with_the_remedy(method: str, changes: tuple[str, ...], tmp_path: Path) -> None:
    config = signals(method, *changes)
    said = collapses(config, tmp_path)
    assert RunFolder.of(config, tmp_path).metrics()[-1]["train_accuracy"] < 0.2
    assert len(said) == 1
    assert "schedule.budget_warmup=0.2" in said[0]


@pytest.mark.parametrize(
    ("method", "changes"), [("sam", ("optimizer.rho=0.05",)), ("lesam", ("optimizer.sigma=0.05",)), ("adamw", ())]
)
def test_a_run_that_learns_is_left_alone(method: str, changes: tuple[str, ...], tmp_path: Path) -> None:
    config = signals(method, *changes)
    assert collapses(config, tmp_path) == []
    assert RunFolder.of(config, tmp_path).metrics()[-1]["train_accuracy"] > 0.2


def test_three_epochs_at_the_uniform_prediction_are_a_collapse() -> None:
    assert spoke_after([row(epoch) for epoch in range(6)]) == [2]


def test_two_epochs_over_budget_are_one() -> None:
    assert spoke_after([row(epoch, overrun=0.6) for epoch in range(6)]) == [1]
    assert spoke_after([row(epoch, overrun=0.6, train_loss=1.5) for epoch in range(6)]) == []


@pytest.mark.parametrize(
    "slow",
    [
        pytest.param([row(epoch, lr=0.01 * (epoch + 1)) for epoch in range(6)], id="the learning rate is being raised"),
        pytest.param([row(epoch, train_accuracy=0.14) for epoch in range(6)], id="some answers are right"),
        pytest.param([row(epoch, train_loss=UNIFORM * 0.98) for epoch in range(6)], id="the loss has left the level"),
        pytest.param([row(epoch, step=9 * (epoch + 1)) for epoch in range(6)], id="a handful of steps"),
        pytest.param([row(epoch, train_loss=UNIFORM * (1 - 1e-3 * epoch)) for epoch in range(6)], id="the loss falls"),
        pytest.param([row(epoch, sharpness=1e-4) for epoch in range(6)], id="the perturbation is too small to matter"),
        pytest.param([row(epoch, rho=None) for epoch in range(6)], id="no perturbation"),
        pytest.param([row(epoch, rho=0.0) for epoch in range(6)], id="none yet"),
        pytest.param([row(0), row(1), row(2, train_loss=2.2), row(3), row(4)], id="now and then"),
        pytest.param([row(epoch, train_loss=None) for epoch in range(6)], id="one pass: the loss is not seen"),
    ],
)
def test_a_slow_start_is_no_collapse(slow: list[dict[str, Any]]) -> None:
    assert spoke_after(slow) == []


def test_a_task_without_a_uniform_prediction_has_none() -> None:
    assert spoke_after([row(epoch) for epoch in range(6)], uniform=None) == []


def test_rows_before_an_interruption_count() -> None:
    rows = [row(epoch) for epoch in range(4)]
    assert CollapseWatch(UNIFORM, rows[:2]).look(rows[2]) is not None
    assert CollapseWatch(UNIFORM, rows[:3]).look(rows[3]) is None  # it was said before the interruption


def test_overrun_is_the_share_of_steps_that_rise_by_more_than_twice_the_promise() -> None:
    steps = [
        Seen(loss=1.0, perturbed_loss=1.5, slope=2.0, rho=0.1),  # 0.5 for 0.2
        Seen(loss=1.0, perturbed_loss=1.3, slope=2.0, rho=0.1),  # 0.3 for 0.2
        Seen(loss=1.0, perturbed_loss=math.inf, slope=2.0, rho=0.1),
        Seen(loss=1.0, perturbed_loss=1.0, slope=2.0, rho=0.0),  # nothing was asked
    ]
    table = torch.stack([seen.row(torch.device("cpu")) for seen in steps])
    assert summarise(table, torch.ones(4))["overrun"] == pytest.approx(2 / 3)
    one_pass = torch.stack([Seen(perturbed_loss=1.5, slope=2.0, rho=0.1).row(torch.device("cpu"))])
    assert summarise(one_pass, torch.ones(1))["overrun"] is None
