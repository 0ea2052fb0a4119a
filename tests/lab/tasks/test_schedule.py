"""Learning rate, budget and switch over time, against the formulas."""

from __future__ import annotations

import math

import pytest

from lesam.lab import recipes
from lesam.lab.config.run import ScheduleConfig, identity
from lesam.lab.config.text import override
from lesam.lab.tasks.schedule import Timetable

FINGERPRINT = "3d2e017cfa"
"""Of LE-SAM on CIFAR-100, ResNet-18, at the paper's scale, when its annealing started in epoch 160."""


def test_cosine_learning_rate_is_torchs_stepped_once_an_epoch() -> None:
    torch = pytest.importorskip("torch")
    times = Timetable(ScheduleConfig(epochs=20), 7)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    for epoch in range(20):
        for batch in range(7):
            assert 0.05 * times.lr_factor(epoch * 7 + batch) == pytest.approx(scheduler.get_last_lr()[0], abs=1e-15)
        optimizer.step()
        scheduler.step()


def test_half_way_is_half_the_rate() -> None:
    assert Timetable(ScheduleConfig(epochs=200), 391).lr_factor(100 * 391) == pytest.approx(0.5)


def test_warm_up_rises_linearly_to_the_peak_and_then_falls() -> None:
    times = Timetable(ScheduleConfig(epochs=10, lr_per="step", lr_warmup=4), 10)
    assert [times.lr_factor(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert times.lr_factor(52) == pytest.approx(0.5)
    assert times.lr_factor(99) == pytest.approx((1 + math.cos(math.pi * 95 / 96)) / 2)


def test_milestones() -> None:
    times = Timetable(ScheduleConfig(epochs=100, lr="multistep", lr_milestones=(75, 90)), 2)
    assert [times.lr_factor(2 * epoch) for epoch in (74, 75, 89, 90)] == pytest.approx([1, 0.1, 0.1, 0.01])


def test_the_papers_budget_annealing() -> None:
    sigma = Timetable(ScheduleConfig(epochs=200, budget_anneal_start=160), 391).budget(0.35)
    assert [sigma(epoch * 391) for epoch in (0, 159, 160)] == [0.35, 0.35, 0.35]
    assert sigma(199 * 391) == 0.0
    assert sigma(180 * 391) == sigma(180 * 391 + 390) == pytest.approx(0.175 * (1 + math.cos(math.pi * 20 / 39)))


def test_budget_warm_up_and_annealing_per_step() -> None:
    schedule = ScheduleConfig(epochs=10, budget_per="step", budget_warmup=10, budget_anneal_start=80)
    sigma = Timetable(schedule, 10).budget(0.4)
    assert sigma(0) == 0.0
    assert sigma(5) == pytest.approx(0.2)
    assert sigma(10) == sigma(79) == 0.4
    assert sigma(99) == 0.0


def test_a_line_runs_over_the_whole_run_also_behind_a_head_start() -> None:
    times = Timetable(ScheduleConfig(epochs=4), 10)
    line = times.line(1.0, -1.0)
    assert [line(step) for step in (0, 10, 20, 40)] == pytest.approx([1.0, 0.5, 0.0, -1.0])
    behind = Timetable(ScheduleConfig(epochs=4), 10, head_start=10).line(1.0, -1.0)
    assert behind(0) == pytest.approx(0.5)


def test_a_number_of_steps_ends_in_the_middle_of_an_epoch() -> None:
    times = Timetable(ScheduleConfig(epochs=5, steps=23), 10)
    assert (times.steps, times.epochs) == (23, 3)
    assert [times.batches(epoch) for epoch in range(3)] == [10, 10, 3]


def test_the_switch_is_an_epoch() -> None:
    assert Timetable(ScheduleConfig(epochs=200, switch_at=160), 391).switch_step == 160 * 391
    with pytest.raises(ValueError, match=r"0\.\.200.*got 201"):
        ScheduleConfig(epochs=200, switch_at=201)


def test_steps_of_a_method_now_and_then() -> None:
    whole = recipes.build("digits", method="sam", scale="small")
    seldom = override(whole, ["schedule.every=4"])
    when = Timetable(seldom.schedule, 10).when
    assert when is not None
    assert [step for step in range(9) if when(step)] == [0, 4, 8]
    assert Timetable(whole.schedule, 10).when is None
    assert seldom.fingerprint != whole.fingerprint
    assert "every" not in identity(whole)["schedule"]  # runs from before the field keep their folders
    with pytest.raises(ValueError, match=r"1 with schedule\.switch_at; got 4 with switch_at=3"):
        override(seldom, ["schedule.switch_at=3"])
    with pytest.raises(ValueError, match=r"schedule\.every=2 .* plain sgd has none"):
        override(recipes.build("digits", method="sgd", scale="small"), ["schedule.every=2"])


def test_annealing_and_milestones_of_a_recipe_follow_its_length() -> None:
    longer = override(recipes.build("digits", method="lesam", scale="small"), ["schedule.epochs=150"])
    sigma = Timetable(longer.schedule, 10).budget(0.35)
    assert sigma(119 * 10) == sigma(120 * 10) == 0.35
    assert 0 < sigma(121 * 10) < 0.35
    assert sigma(149 * 10) == 0.0
    shorter = override(recipes.build("robust-cifar10", method="sgd", scale="paper"), ["schedule.epochs=20"])
    times = Timetable(shorter.schedule, 10)
    assert [times.lr_factor(10 * epoch) for epoch in (14, 15, 17, 18)] == pytest.approx([1, 0.1, 0.1, 0.01])


def test_fractions_of_steps_are_of_those_that_are_trained() -> None:
    schedule = ScheduleConfig(epochs=5, steps=20, budget_per="step", budget_anneal_start=0.8, budget_warmup=0.1)
    sigma = Timetable(schedule, 10).budget(0.4)
    assert [sigma(step) for step in (0, 1, 2, 16, 19)] == pytest.approx([0.0, 0.2, 0.4, 0.4, 0.0])
    rate = Timetable(ScheduleConfig(epochs=2, lr_per="step", lr_warmup=0.2), 10).lr_factor
    assert [rate(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize("change", ["budget_anneal_start=40.5", "lr_milestones=0.5,1.5", "lr_warmup=0.0"])
def test_a_fraction_lies_between_nothing_and_the_whole(change: str) -> None:
    with pytest.raises(ValueError, match=r"fraction of the length in \(0, 1\]"):
        override(recipes.build("digits", method="lesam"), [f"schedule.{change}"])


def test_a_run_with_a_fraction_is_the_run_with_its_epoch() -> None:
    """Folders of versions that wrote epochs are found again."""
    config = recipes.build("cifar100-resnet18", method="lesam", scale="paper")
    assert config.fingerprint == override(config, ["schedule.budget_anneal_start=160"]).fingerprint == FINGERPRINT
    assert override(config, ["schedule.budget_anneal_start=0.5"]).fingerprint != FINGERPRINT
