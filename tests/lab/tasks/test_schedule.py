"""Learning rate, budget and switch over time, against the formulas."""

from __future__ import annotations

import math

import pytest

from lesam.lab.config.run import ScheduleConfig
from lesam.lab.tasks.schedule import Timetable


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


def test_a_number_of_steps_ends_in_the_middle_of_an_epoch() -> None:
    times = Timetable(ScheduleConfig(epochs=5, steps=23), 10)
    assert (times.steps, times.epochs) == (23, 3)
    assert [times.batches(epoch) for epoch in range(3)] == [10, 10, 3]


def test_the_switch_is_an_epoch() -> None:
    assert Timetable(ScheduleConfig(epochs=200, switch_at=160), 391).switch_step == 160 * 391
    with pytest.raises(ValueError, match=r"0\.\.200.*got 201"):
        ScheduleConfig(epochs=200, switch_at=201)
