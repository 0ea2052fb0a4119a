"""The low-pass filter measure against its closed form on quadratics."""

from __future__ import annotations

import copy

import pytest
import torch

from lesam.flatness import low_pass_filter

from .problems import cnn, mlp, quadratic


def test_closed_form_on_a_quadratic() -> None:
    """E L(w + tau) = L(w) + sigma^2 / 2 tr(H), exactly."""
    problem = quadratic([6.0, 3.0, 1.0, -0.5])
    found = low_pass_filter(problem.model, problem.loss_fn, problem.data, sigma=0.3, samples=400)
    assert abs(found.estimate - (found.loss + 0.3**2 / 2 * 9.5)) <= 4 * found.stderr
    assert found.excess > 0


def test_standard_error_falls_with_the_root_of_the_samples() -> None:
    problem = quadratic([6.0, 3.0, 1.0, -0.5])
    few, many = (low_pass_filter(problem.model, problem.loss_fn, problem.data, sigma=0.3, samples=n) for n in (50, 800))
    assert 2.8 < few.stderr / many.stderr < 5.6  # sqrt(16) = 4


def test_the_mean_is_over_samples_not_batches() -> None:
    problem = cnn()
    split = low_pass_filter(problem.model, problem.loss_fn, problem.data, samples=3)
    whole = low_pass_filter(problem.model, problem.loss_fn, (problem.inputs, problem.targets), samples=3)
    torch.testing.assert_close(split.losses, whole.losses, rtol=1e-12, atol=0)


def test_noise_is_common_to_epochs_and_pays() -> None:
    """Two neighbouring weights: the paired difference is far better known than either value."""
    problem = mlp()
    later = copy.deepcopy(problem.model)
    with torch.no_grad():
        for p in later.parameters():
            p.mul_(0.999)
    a = low_pass_filter(problem.model, problem.loss_fn, problem.data, sigma=0.1, samples=30)
    b = low_pass_filter(later, problem.loss_fn, problem.data, sigma=0.1, samples=30)
    difference, error = a.minus(b)
    assert difference == pytest.approx(a.estimate - b.estimate)
    assert error < a.stderr / 20
    other = low_pass_filter(later, problem.loss_fn, problem.data, sigma=0.1, samples=30, seed=1)
    with pytest.raises(ValueError, match=r"not common.*seed is 0"):
        a.minus(other)


def test_draw_i_does_not_depend_on_how_many_there_are() -> None:
    problem = mlp()
    few, many = (low_pass_filter(problem.model, problem.loss_fn, problem.data, samples=n) for n in (3, 6))
    assert torch.equal(few.losses, many.losses[:3])


def test_only_selected_parameters_get_noise() -> None:
    problem = quadratic([4.0, 2.0])
    with pytest.raises(ValueError, match="no parameters"):
        low_pass_filter(problem.model, problem.loss_fn, problem.data, params=lambda name, p: name == "bias")
    problem = mlp()
    part = low_pass_filter(problem.model, problem.loss_fn, problem.data, params=["3.bias"], samples=5)
    assert part.settings["parameters"] == 3


def test_noise_that_overflows_is_refused() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    x = torch.ones(2, 1)
    with pytest.raises(ValueError, match=r"loss is inf under noise \d+ of standard deviation 10000"):
        low_pass_filter(model, lambda out, _: out.exp().mean(), [(x, x)], sigma=1e4)


@pytest.mark.parametrize("options", [{"sigma": 0.0}, {"samples": 1}])
def test_options_of_the_wrong_form(options) -> None:
    problem = mlp()
    with pytest.raises(ValueError, match=r"sigma|samples"):
        low_pass_filter(problem.model, problem.loss_fn, problem.data, **options)
