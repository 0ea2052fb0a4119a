"""Schedules against values worked out by hand."""

from __future__ import annotations

import copy
import itertools
import math
import pickle

import pytest
import torch

import lesam
from lesam import schedules

from .cases import batches, closure_for, network


def test_cosine_tail_at_the_papers_setting():
    """200 epochs, annealed from 160: full at 159 and 160, half way between 179 and 180, zero at 199."""
    sigma = schedules.cosine_tail(0.35, 160, 200)
    assert sigma(0) == sigma(159) == sigma(160) == 0.35
    assert sigma(199) == 0.0
    assert sigma(1000) == 0.0
    assert math.isclose(sigma(179) + sigma(180), 0.35)
    assert math.isclose(sigma(170), 0.35 / 2 * (1 + math.cos(math.pi * 10 / 39)))


@pytest.mark.parametrize("stop", [9, 10, 11])
def test_cosine_tail_without_room_is_the_end_value(stop: int):
    sigma = schedules.cosine_tail(1.0, 10, stop, end=0.2)
    assert sigma(9) == 1.0
    assert sigma(10) == sigma(11) == 0.2


def test_cosine_tail_falls_steadily_to_its_end():
    sigma = schedules.cosine_tail(1.0, 5, 50, end=0.1)
    values = [sigma(t) for t in range(60)]
    assert all(a >= b for a, b in itertools.pairwise(values))
    assert values[49] == 0.1
    assert values[48] > 0.1


def test_warmup_leads_into_any_schedule():
    ramp = schedules.warmup(schedules.cosine_tail(0.4, 6, 11), steps=4)
    assert [ramp(t) for t in (0, 1, 2, 4, 5)] == [0.0, 0.1, 0.2, 0.4, 0.4]
    assert ramp(10) == 0.0


def test_per_epoch_changes_only_between_epochs():
    sigma = schedules.per_epoch(schedules.cosine_tail(0.35, 1, 4), steps_per_epoch=7)
    values = [sigma(t) for t in range(28)]
    assert values[:7] == [0.35] * 7
    assert len(set(values[7:14])) == 1
    assert values[21:] == [0.0] * 7


def test_proportional_to_lr_is_clamped():
    """A warm-up below lr_min must not make the radius negative."""
    base = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    rho = schedules.proportional_to_lr(base, rho_max=0.4, rho_min=0.1, lr_min=0.2)
    for lr, expected in ((1.0, 0.4), (0.6, 0.25), (0.2, 0.1), (0.0, 0.1), (2.0, 0.4)):
        base.param_groups[0]["lr"] = lr
        assert math.isclose(rho(0), expected)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: schedules.every(0), "k >= 1, got 0"),
        (lambda: schedules.per_epoch(schedules.constant(1.0), 0), "at least 1, got 0"),
        (lambda: schedules.proportional_to_lr(torch.optim.SGD([torch.zeros(1)], lr=0.1), 0.1, 0.2), "rho_min=0.2"),
        (
            lambda: schedules.proportional_to_lr(torch.optim.SGD([torch.zeros(1)], lr=0.1), 0.1, lr_max=0.0),
            "must differ",
        ),
    ],
)
def test_bad_schedules_are_refused(make, match: str):
    with pytest.raises(ValueError, match=match):
        make()


def test_the_optimizer_follows_the_schedule_step_by_step():
    model = network()
    sigma = schedules.cosine_tail(0.05, 2, 6)
    opt = lesam.LESAM(torch.optim.SGD(model.parameters(), lr=0.01), sigma=sigma, rho_max=None)
    for t, (x, y) in enumerate(batches(8)):
        opt.step(closure_for(opt, model, x, y))
        assert math.isclose(float(opt.last.sigma), sigma(t), abs_tol=1e-15)
        assert math.isclose(float(opt.last.rho * opt.last.slope), sigma(t), rel_tol=1e-9, abs_tol=1e-12)


def test_schedules_travel_with_the_optimizer():
    """A copy's learning-rate-bound radius reads the copy's learning rate."""
    base = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    opt = lesam.GSAM(base, rho=schedules.proportional_to_lr(base, rho_max=0.4))
    for twin in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        twin.param_groups[0]["lr"] = 0.5
        assert math.isclose(twin.parts.radius.rho(0), 0.2)
        assert math.isclose(opt.parts.radius.rho(0), 0.4)
