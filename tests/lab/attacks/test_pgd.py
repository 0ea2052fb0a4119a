"""Attacks: inside ball and box, the exact maximiser of a linear model, no trace on the model."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lesam.lab.attacks.pgd import Attack, perturb, robust_accuracy
from tests.lab.attacks.networks import NORMS, Recorder, binary, right, sizes

# What an attack may do: its ball, its box, its start and its steps.


@settings(max_examples=40, deadline=None)
@given(
    norm=st.sampled_from(NORMS),
    eps=st.floats(1e-3, 0.9),
    share=st.floats(0.01, 3.0),
    keep=st.sampled_from(["last", "worst"]),
    restarts=st.integers(1, 3),
    seed=st.integers(0, 2**40),
)
def test_the_result_is_in_the_ball_and_in_the_box(
    norm: Any, eps: float, share: float, keep: Any, restarts: int, seed: int
) -> None:
    source = torch.Generator().manual_seed(seed)
    images = (torch.rand(5, 2, 4, 4, generator=source) * 1.4 - 0.2).clamp(0, 1)  # many pixels at the border
    weights = torch.randn(3, 32, generator=source)
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 3), nn.Tanh())
    with torch.no_grad():
        model[1].weight.copy_(weights)
    attack = Attack(norm, eps, share * eps, steps=3, restarts=restarts, keep=keep)
    found = perturb(model, images, torch.tensor([0, 1, 2, 0, 1]), attack, seed)
    assert found.min() >= 0
    assert found.max() <= 1
    assert sizes(found - images, norm).max() <= eps + 1e-6


def start(norm: Any, images: Tensor, eps: float) -> Tensor:
    model = Recorder(images[0].numel())
    perturb(model, images, torch.zeros(len(images), dtype=torch.int64), Attack(norm, eps, eps), 3)
    return model.seen[0]


def test_linf_starts_are_uniform_in_the_cube() -> None:
    images = torch.full((400, 1, 5, 5), 0.5, dtype=torch.float64)
    values = (start("linf", images, 0.2) - images).flatten() / 0.2
    assert values.abs().max() <= 1
    quantiles = torch.quantile(values, torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9], dtype=torch.float64))
    torch.testing.assert_close(quantiles, torch.tensor([-0.8, -0.5, 0, 0.5, 0.8]).double(), atol=0.05, rtol=0)


def test_l2_starts_have_a_uniform_length_and_any_direction() -> None:
    images = torch.full((4000, 1, 5, 5), 0.5, dtype=torch.float64)
    delta = (start("l2", images, 0.2) - images).flatten(1) / 0.2
    lengths = delta.norm(dim=1)
    assert lengths.max() <= 1
    quantiles = torch.quantile(lengths, torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9], dtype=torch.float64))
    torch.testing.assert_close(quantiles, torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9]).double(), atol=0.04, rtol=0)
    direction = delta / lengths[:, None]
    covariance = direction.T @ direction / len(direction)
    torch.testing.assert_close(covariance, torch.eye(25).double() / 25, atol=0.004, rtol=0)


@pytest.mark.parametrize("norm", NORMS)
def test_every_point_the_model_is_shown_is_a_valid_image(norm: Any) -> None:
    images = torch.zeros(20, 1, 3, 3, dtype=torch.float64)
    images[10:] = 1
    model = Recorder(9)
    perturb(model, images, torch.zeros(20, dtype=torch.int64), Attack(norm, 0.5, 0.3), 0)
    assert len(model.seen) == 10
    shown = torch.stack(model.seen)
    assert shown.min() >= 0
    assert shown.max() <= 1
    assert (shown[0] != images).any()


def test_without_a_random_start_it_starts_at_the_image() -> None:
    images = torch.full((3, 4), 0.5, dtype=torch.float64)
    model = Recorder(4)
    perturb(model, images, torch.tensor([0, 1, 0]), Attack("l2", 0.1, 0.1, random_start=False), 0)
    torch.testing.assert_close(model.seen[0], images, rtol=0, atol=0)


# The exact answer for a linear model.


def test_linf_reaches_the_maximiser_of_a_linear_model() -> None:
    model, images, labels, up = binary(20)
    found = perturb(model, images, labels, Attack.usual("linf", 0.2), 0)
    torch.testing.assert_close(found, images + 0.2 * up.sign(), rtol=0, atol=1e-12)


def test_linf_reaches_the_maximiser_where_the_box_binds() -> None:
    model, images, labels, up = binary(20)
    images = (images * 3 - 1).clamp(0, 1)
    found = perturb(model, images, labels, Attack.usual("linf", 0.4), 0)
    assert ((found == 0) | (found == 1)).any()
    torch.testing.assert_close(found, (images + 0.4 * up.sign()).clamp(0, 1), rtol=0, atol=1e-12)


def test_l2_reaches_the_maximiser_of_a_linear_model() -> None:
    model, images, labels, up = binary(20)
    best = images + 0.25 * up / up.norm(dim=1, keepdim=True)
    attack = Attack.usual("l2", 0.25)
    torch.testing.assert_close(
        perturb(model, images, labels, replace(attack, random_start=False)), best, rtol=0, atol=1e-8
    )
    torch.testing.assert_close(perturb(model, images, labels, replace(attack, steps=250), 0), best, rtol=0, atol=1e-8)


@pytest.mark.parametrize("norm", NORMS)
def test_one_step_has_the_length_of_the_step(norm: Any) -> None:
    model, images, labels, up = binary(20)
    found = perturb(model, images, labels, Attack(norm, 0.2, 0.05, steps=1, random_start=False))
    unit = up.sign() if norm == "linf" else up / up.norm(dim=1, keepdim=True)
    torch.testing.assert_close(found - images, 0.05 * unit, rtol=0, atol=1e-9)


def test_an_image_is_attacked_as_if_it_were_alone() -> None:
    """Also where its gradient is as small as the constant that guards the division."""
    model, images, labels, _ = binary(20)
    with torch.no_grad():
        model.weight.mul_(1e-10)
    attack = Attack("l2", 0.2, 0.05, steps=2, random_start=False)
    alone = torch.cat([perturb(model, images[i : i + 1], labels[i : i + 1], attack) for i in range(12)])
    torch.testing.assert_close(perturb(model, images, labels, attack), alone, rtol=1e-12, atol=0)


# Choosing among candidates.


class Hill(nn.Module):
    """Two classes; the loss of class 0 is highest at x = 0.6 and nowhere enough to be wrong."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([(x - 0.6) ** 2 + 0.01, torch.zeros_like(x)], 1)


def test_the_worst_iterate_is_kept_when_the_last_one_is_not() -> None:
    image, label = torch.tensor([[0.5]], dtype=torch.float64), torch.tensor([0])
    path = Attack("linf", 0.3, 0.3, steps=1, random_start=False)  # over the top, to 0.8
    assert perturb(Hill(), image, label, path).item() == pytest.approx(0.8)
    assert perturb(Hill(), image, label, replace(path, keep="worst")).item() == pytest.approx(0.5)
    short = replace(path, step_size=0.08, steps=2)  # nearly to the top, then over it
    assert perturb(Hill(), image, label, short).item() == pytest.approx(0.66)
    assert perturb(Hill(), image, label, replace(short, keep="worst")).item() == pytest.approx(0.58)


class Plain(nn.Module):
    """Three classes: class 0 is right at a loss of log 3 on the left, and wrong at about log 2 on the right."""

    def forward(self, x: Tensor) -> Tensor:
        left, wrong = x.new_tensor([1e-6, 0.0, 0.0]), x.new_tensor([0.0, 1e-6, -20.0])
        return torch.where(x < 0.5, left, wrong) + 0 * x


def test_a_wrong_answer_is_worth_more_than_a_high_loss() -> None:
    image, label = torch.tensor([[0.5]], dtype=torch.float64), torch.tensor([0])
    attack = Attack("linf", 0.4, 1e-9, steps=1, restarts=16)
    for seed in range(4):
        assert perturb(Plain(), image, label, attack, seed).item() > 0.5


class Spike(nn.Module):
    """Wrong about class 0 at x = 0.5 alone."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x == 0.5, x.new_tensor([0.0, 1.0]), x.new_tensor([1.0, 0.0])) + 0 * x


def test_the_worst_may_be_the_image_itself() -> None:
    image, label = torch.tensor([[0.5]], dtype=torch.float64), torch.tensor([0])
    attack = Attack("linf", 0.1, 0.01)
    assert robust_accuracy(Spike(), [(image, label)], attack).attacked == 1
    assert robust_accuracy(Spike(), [(image, label)], replace(attack, keep="worst")).attacked == 0


def test_more_restarts_break_at_least_the_same_images(batch: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, images, labels = batch
    attack = Attack("linf", 0.1, 0.02, steps=1)  # weak, so that the start matters
    standing = [
        right(model, perturb(model, images, labels, replace(attack, restarts=restarts), 7), labels)
        for restarts in (1, 3, 9)
    ]
    for fewer, more in itertools.pairwise(standing):
        assert not (more & ~fewer).any()
    assert standing[2].sum() < standing[0].sum()
    parts = [(images[i : i + 50], labels[i : i + 50]) for i in range(0, 300, 50)]
    accuracies = [robust_accuracy(model, parts, replace(attack, restarts=n), seed=2).attacked for n in (1, 3, 9)]
    assert accuracies[0] >= accuracies[1] >= accuracies[2]
    assert accuracies[0] > accuracies[2]


def test_the_worst_iterate_breaks_what_is_broken_without_it(batch: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, images, labels = batch
    attack = Attack("linf", 0.15, 0.3, steps=4)  # from corner to corner
    last = right(model, perturb(model, images, labels, attack, 1), labels)
    worst = right(model, perturb(model, images, labels, replace(attack, keep="worst"), 1), labels)
    assert not (worst & ~last).any()
    assert not (worst & ~right(model, images, labels)).any()
    assert worst.sum() < last.sum()


# Randomness and traces.


@pytest.mark.parametrize("norm", NORMS)
def test_the_generator_decides_everything(norm: Any, batch: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, images, labels = (batch[0], batch[1][:20], batch[2][:20])
    attack = Attack(norm, 0.1, 0.01, steps=2)

    def attacked(seed: int, globally: int) -> Tensor:
        torch.manual_seed(globally)
        return perturb(model, images, labels, attack, torch.Generator().manual_seed(seed))

    assert torch.equal(attacked(0, 1), attacked(0, 2))
    assert torch.equal(attacked(0, 1), perturb(model, images, labels, attack, 0))
    assert not torch.equal(attacked(0, 1), attacked(1, 1))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    source = torch.Generator().manual_seed(0)
    first = perturb(model, images, labels, attack, source)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(perturb(model, images, labels, attack, source), first)  # it continues where it stopped
    robust_accuracy(model, [(images, labels)], attack)
    assert torch.equal(torch.get_rng_state(), before)


def test_every_batch_has_starts_of_its_own(batch: tuple[nn.Module, Tensor, Tensor]) -> None:
    images = torch.full((2, 6), 0.5, dtype=torch.float64)
    model, labels = Recorder(6), torch.tensor([0, 1])
    robust_accuracy(model, [(images, labels), (images, labels)], Attack("linf", 0.1, 0.1, steps=1))
    start_one, _, _, start_two, _, _ = model.seen
    assert not torch.equal(start_one, start_two)


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 9, 3)
    ).train()
    model[2].eval()
    model[0].weight.requires_grad_(False)
    model[4].weight.grad = torch.ones_like(model[4].weight)
    state, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    labels = torch.tensor([0, 1, 7 if fails else 2])
    attack = Attack("linf", 0.1, 0.1, restarts=2, keep="worst")
    images = torch.rand(3, 1, 5, 5)
    given_images = images.clone()
    with torch.no_grad():  # a caller without gradients must not matter
        if fails:
            with pytest.raises(IndexError):
                perturb(model, images, labels, attack)
        else:
            assert not perturb(model, images, labels, attack).requires_grad
            robust_accuracy(model, [(images, labels)], attack)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True, True, True]
    assert torch.equal(model[4].weight.grad, torch.ones_like(model[4].weight))
    assert all(p.grad is None for name, p in model.named_parameters() if name != "4.weight")
    assert torch.equal(images, given_images)
    assert not images.requires_grad


def test_the_model_is_attacked_in_eval_mode() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    images, labels = torch.rand(6, 4, dtype=torch.float64), torch.arange(6) % 2
    attack = Attack.usual("l2", 0.1)
    assert torch.equal(perturb(model.train(), images, labels, attack), perturb(model.eval(), images, labels, attack))
    assert robust_accuracy(model.train(), [(images, labels)], attack) == robust_accuracy(
        model.eval(), [(images, labels)], attack
    )
