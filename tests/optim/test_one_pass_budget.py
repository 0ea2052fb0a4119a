"""The loss budget at one pass: an average of gradients stands for the gradient, its length for the slope."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import lesam


def parabola(at: list[float], **options: object) -> tuple[Tensor, lesam.SharpnessAware]:
    w = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    return w, lesam.OnePassLESAM(torch.optim.SGD([w], lr=0.1), **options)  # type: ignore[arg-type]


def descend(w: Tensor, opt: lesam.SharpnessAware, h: Tensor) -> Tensor:
    def closure() -> Tensor:
        opt.zero_grad()
        loss = 0.5 * (h * w.square()).sum()
        loss.backward()
        return loss

    loss = opt.step(closure)
    assert isinstance(loss, Tensor)
    return loss


def test_three_steps_by_hand() -> None:
    """L = 3 w^2 / 2 from w = 2: every gradient is 3 (w + eps), and along a line directions are signs."""
    w, opt = parabola([2.0], sigma=0.6, theta=0.5, rho_max=None)
    h = torch.tensor([3.0], dtype=torch.float64)
    descend(w, opt, h)  # nothing to climb along yet
    assert w.item() == pytest.approx(2.0 - 0.1 * 6.0)
    assert math.isnan(float(opt.last.rho))
    eps = 0.6 / 6.0  # the average is the first gradient, 6
    second = 3.0 * (1.4 + eps)
    descend(w, opt, h)
    assert float(opt.last.rho) == pytest.approx(eps)
    assert float(opt.last.slope) == pytest.approx(6.0)
    assert w.item() == pytest.approx(1.4 - 0.1 * second)
    average = (6.0 + second) / 2
    descend(w, opt, h)
    assert float(opt.last.rho) == pytest.approx(0.6 / average)
    assert float(opt.last.cost) == 1


def test_the_rise_is_the_budget_where_gradients_do_not_change() -> None:
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    slope = torch.tensor([1.0, -2.0, 2.0], dtype=torch.float64)  # of length 3
    opt = lesam.OnePassLESAM(torch.optim.SGD([w], lr=0.1), sigma=0.3, rho_max=None)
    for number in range(3):
        before = float(slope @ w.detach())

        def closure() -> Tensor:
            opt.zero_grad()
            loss = slope @ w
            loss.backward()
            return loss

        loss = opt.step(closure)
        assert float(loss) - before == pytest.approx(0.3 if number else 0.0)  # type: ignore[arg-type]


def test_theta_one_with_a_cap_that_binds_is_s2sam() -> None:
    ours, theirs = (torch.tensor([1.0, -0.5], dtype=torch.float64, requires_grad=True) for _ in range(2))
    one = lesam.OnePassLESAM(torch.optim.SGD([ours], lr=0.1), sigma=1e6, theta=1.0, rho_max=0.2)
    other = lesam.S2SAM(torch.optim.SGD([theirs], lr=0.1), rho=0.2)
    h = torch.tensor([3.0, 0.5], dtype=torch.float64)
    for _ in range(5):
        descend(ours, one, h)
        descend(theirs, other, h)
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=0)
    assert float(one.last.capped) == 1


@pytest.mark.parametrize("theta", [0.5, 1.0])
def test_a_loss_scaler_leaves_no_trace_in_the_average(theta: float) -> None:
    """The scale grows after every step; the same weights as without a scaler, and an average of the loss itself."""
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    found = []
    for enabled in (True, False):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        opt = lesam.OnePassLESAM(torch.optim.SGD(model.parameters(), lr=0.1), theta=theta, model=model)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=1, enabled=enabled)
        for _ in range(4):
            with opt.perturbed(scaler):
                scaler.scale(model(x).square().mean()).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
        kept = [opt.state[p][next(key for key in opt.state[p] if "stale" in key)] for p in model.parameters()]
        found.append([*(p.detach() for p in model.parameters()), *kept])
    for scaled, plain in zip(*found, strict=True):
        torch.testing.assert_close(scaled, plain)


def test_only_directions_that_stand_for_the_gradient_give_an_estimate() -> None:
    base = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1, momentum=0.9)
    for direction in (lesam.Momentum(), lesam.optim.Drift()):
        with pytest.raises(ValueError, match=r"EstimatedBudget\(sigma=0.1.* cannot be used with"):
            lesam.SharpnessAware(base, direction=direction, radius=lesam.optim.EstimatedBudget(0.1))
    with pytest.raises(ValueError, match=r"LossBudget\(sigma=0.1.* cannot be used with Stale\(\).*EstimatedBudget"):
        lesam.SharpnessAware(base, direction=lesam.Stale(), radius=lesam.LossBudget(0.1))


def test_two_pass_directions_get_their_slope_and_not_an_estimate() -> None:
    ours, theirs = (torch.tensor([1.0, -0.5], dtype=torch.float64, requires_grad=True) for _ in range(2))
    one = lesam.SharpnessAware(torch.optim.SGD([ours], lr=0.1), radius=lesam.optim.EstimatedBudget(0.1))
    other = lesam.LESAM(torch.optim.SGD([theirs], lr=0.1), sigma=0.1, rho_max=None)
    h = torch.tensor([3.0, 0.5], dtype=torch.float64)
    for _ in range(3):
        descend(ours, one, h)
        descend(theirs, other, h)
    assert torch.equal(ours, theirs)
