"""Gates: steps that decide after their first pass whether they take a second one (AE-SAM)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import lesam
from tests.reference.long_hand import dot, norm, plus, scaled

from .cases import BASES, ONE_OF_EACH, batches, closure_for, flat, network, sgd, train, weights
from .faults import both_styles, model_bits, same_bits, step_once

(AESAM,) = (case for case in ONE_OF_EACH if case.name == "aesam")
ALTERNATING = {"threshold": lambda step: 100.0 if step % 2 else -100.0}  # climbs at even steps


def squares(opt: lesam.SharpnessAware, model: nn.Module, steps: int) -> list[float]:
    """Train, and return ``|g|^2`` at the weights before each step."""
    found = []
    for x, y in batches(steps):
        g = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
        found.append(float(flat(list(g)).square().sum()))
        opt.step(closure_for(opt, model, x, y))
    return found


def test_the_case_of_the_table_takes_both_ways():
    model = network()
    opt = AESAM.make(sgd(model))
    costs = []
    for x, y in batches(12):
        opt.step(closure_for(opt, model, x, y))
        costs.append(float(opt.last.cost))
    assert set(costs) == {1.0, 2.0}


def test_mean_and_variance_are_the_weighted_sums_they_stand_for():
    """Unrolled: mu_t = (1 - d) sum_k d^(t-k) s_k, and the same sum of (s_k - mu_k)^2; in every group."""
    model, decay = network(), 0.6
    groups = [{"params": list(layer.parameters())} for layer in (model[0], model[2])]
    opt = lesam.AESAM(torch.optim.SGD(groups, lr=0.05), rho=0.1, threshold=0.2, decay=decay)
    s = squares(opt, model, 7)
    means = [(1 - decay) * sum(decay ** (t - k) * s[k] for k in range(t + 1)) for t in range(7)]
    variance = (1 - decay) * sum(decay ** (6 - k) * (s[k] - means[k]) ** 2 for k in range(7))
    for group in opt.param_groups:
        assert group["lesam_square_mean"] == pytest.approx(means[-1], rel=1e-10)
        assert group["lesam_square_variance"] == pytest.approx(variance, rel=1e-10)


@both_styles
def test_without_memory_every_threshold_is_met(style: str):
    """With decay 0 the mean is |g|^2 itself, and the deviation 0."""
    model = network()
    opt = lesam.AESAM(sgd(model), rho=0.1, threshold=5.0, decay=0.0)
    step_once(opt, model, next(batches(1)), style)
    assert float(opt.last.cost) == 2.0


def test_the_threshold_falls_over_training_as_in_the_paper():
    line = lesam.schedules.warmup(-1.0, steps=200, start=1.0)
    assert [line(t) for t in (0, 50, 100, 200)] == pytest.approx([1.0, 0.5, 0.0, -1.0])
    model = network()
    train(lesam.AESAM(sgd(model), threshold=line), model, 3)


def test_passes_is_the_most_there_can_be_and_exact_after_clean():
    model = network()
    opt = lesam.AESAM(sgd(model), **ALTERNATING)
    for step, (x, y) in enumerate(batches(4)):
        assert opt.passes == 2
        with opt.clean():
            nn.functional.cross_entropy(model(x), y).backward()
        assert opt.passes == (1 if step % 2 else 2)
        if opt.passes == 2:
            with opt.perturbed():
                nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
        assert float(opt.last.cost) == (1.0 if step % 2 else 2.0)


def test_a_step_that_does_not_climb_is_the_base_step_whose_gradient_may_be_clipped():
    ours, theirs = network(), network()
    opt = lesam.AESAM(sgd(ours), threshold=1e9, decay=0.5, max_norm=0.1)
    base = sgd(theirs)
    for x, y in batches(4):
        with opt.clean():
            nn.functional.cross_entropy(ours(x), y).backward()
        opt.step()
        base.zero_grad()
        nn.functional.cross_entropy(theirs(x), y).backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        base.step()
    torch.testing.assert_close(flat(weights(ours)), flat(weights(theirs)), rtol=1e-12, atol=1e-14)


@both_styles
def test_what_was_not_taken_is_not_counted(style: str):
    """A dropped step, and one with a gradient that is not finite, leave the statistics alone."""
    model = network()
    opt = AESAM.make(torch.optim.SGD(model.parameters(), lr=0.0))
    data = list(batches(3))
    step_once(opt, model, data[0], style)
    before = {key: value for key, value in opt.param_groups[0].items() if key.startswith("lesam_square")}
    assert all(value > 0 for value in before.values())
    with opt.clean():
        nn.functional.cross_entropy(model(data[1][0]), data[1][1]).backward()
    opt.zero_grad()
    x = data[2][0].clone()
    x[0, 0] = math.nan
    step_once(opt, model, (x, data[2][1]), style)
    assert float(opt.last.rho) == 0.0
    assert before.items() <= opt.param_groups[0].items()


def test_a_state_of_the_base_alone_starts_the_statistics_afresh():
    model = network()
    opt = AESAM.make(sgd(model))
    train(opt, model, 3)
    saved = sgd(network()).state_dict()
    opt.load_state_dict(saved)
    s = squares(opt, model, 1)
    assert opt.param_groups[0]["lesam_square_mean"] == pytest.approx((1 - AESAM.options["decay"]) * s[0], rel=1e-10)


def test_local_pairs_decide_by_the_first_and_average_as_a_plain_step():
    """Two micro-batches, each with its own perturbation where the step climbs."""
    ours, theirs = network(), network()
    opt = lesam.AESAM(sgd(ours), rho=0.1, perturbation="local", **ALTERNATING)
    base = sgd(theirs)
    sam = lesam.SAM(base, rho=0.1, perturbation="local")
    for step, (x, y) in enumerate(batches(4)):
        parts = list(zip(x.split(8), y.split(8), strict=True))
        opt.step([closure_for(opt, ours, *part) for part in parts])
        if step % 2 == 0:
            sam.step([closure_for(sam, theirs, *part) for part in parts])
        else:
            base.zero_grad()
            nn.functional.cross_entropy(theirs(x), y).backward()
            base.step()
        assert float(opt.last.cost) == (1.0 if step % 2 else 2.0)
    torch.testing.assert_close(flat(weights(ours)), flat(weights(theirs)), rtol=1e-10, atol=1e-12)


@both_styles
def test_with_the_combiner_of_looksam_it_is_ae_looksam(style: str):
    """Where the gate is closed, what the last climb added is used again: by hand, with plain SGD."""
    model, alpha, rho, lr = network(), 0.5, 0.1, 0.05
    opt = lesam.SharpnessAware(
        torch.optim.SGD(model.parameters(), lr=lr),
        radius=lesam.Fixed(rho),
        combine=lesam.orthogonal(alpha, every=1),
        gate=lesam.LargeGradients(lambda step: 100.0 if step % 3 else -100.0),
    )
    g_v: list[Any] = []
    for step, (x, y) in enumerate(batches(6)):
        twin = network()
        twin.load_state_dict(model.state_dict())
        parameters = list(twin.parameters())
        g: list[Any] = list(torch.autograd.grad(nn.functional.cross_entropy(twin(x), y), parameters))
        if step % 3 == 0:
            with torch.no_grad():
                for p, e in zip(parameters, scaled(rho / norm(g), g), strict=True):
                    p.add_(e)
            g_hat: list[Any] = list(torch.autograd.grad(nn.functional.cross_entropy(twin(x), y), parameters))
            g_v, update = plus(g_hat, scaled(-dot(g, g_hat) / norm(g) ** 2, g)), g_hat
        else:
            update = plus(g, scaled(alpha * norm(g) / norm(g_v), g_v))
        expected = [w - lr * u for w, u in zip(weights(model), update, strict=True)]
        step_once(opt, model, (x, y), style)
        torch.testing.assert_close(flat(weights(model)), flat(expected), rtol=1e-10, atol=1e-12)


def test_any_method_of_two_passes_takes_a_gate():
    """A loss-equated step where it pays: LE-SAM with AE-SAM's gate."""
    model = network()
    opt = lesam.LESAM(sgd(model), sigma=0.05, gate=lesam.LargeGradients(**ALTERNATING))
    costs = []
    for x, y in batches(4):
        opt.step(closure_for(opt, model, x, y))
        costs.append(float(opt.last.cost))
    assert costs == [2.0, 1.0, 2.0, 1.0]


# ---------------------------------------------------------------------- refusals


def test_pairings_without_a_meaning():
    gate = lesam.LargeGradients()
    with pytest.raises(ValueError, match=r"Stale.*never computes it"):
        lesam.S2SAM(sgd(), gate=gate)
    with pytest.raises(ValueError, match="subset leaves tensors out"):
        lesam.ESAM(sgd(), gamma=1.0, gate=gate)
    with pytest.raises(ValueError, match="is not a Gate"):
        lesam.SAM(sgd(), gate=0.5)


def test_a_first_pass_on_another_loss_or_outside_clean():
    model = network()
    opt = lesam.AESAM(sgd(model))
    x, y = next(batches(1))
    before = model_bits(model)
    closure = closure_for(opt, model, x, y)
    with pytest.raises(ValueError, match="ascent= cannot be used with LargeGradients"):
        opt.step(closure, ascent=closure)
    nn.functional.cross_entropy(model(x), y).backward()
    with pytest.raises(RuntimeError, match=r"run it inside `with opt.clean\(\):`"), opt.perturbed():
        pass
    assert same_bits(before, model_bits(model))


@pytest.mark.parametrize("name", ["onepasslesam", "msam", "s2sam", "emasam"])
def test_a_first_pass_is_refused_where_there_is_none(name: str):
    model = network()
    opt = lesam.METHODS[name](sgd(model))
    x, y = next(batches(1))
    closure = closure_for(opt, model, x, y)
    with pytest.raises(ValueError, match="climbs without one: leave it out, or use a method of two passes"):
        opt.step(closure, ascent=closure)
    opt.step(closure)


def test_another_method_leaves_the_statistics_out_and_a_gate_keeps_them():
    """What nobody keeps up to date would be taken up again by a later AE-SAM."""
    model = network()
    opt = lesam.AESAM(sgd(model))
    train(opt, model, 3)
    saved = opt.state_dict()
    other, again = lesam.SAM(sgd(model)), lesam.AESAM(sgd(model))
    other.load_state_dict(saved)
    again.load_state_dict(saved)
    assert [key for key in other.param_groups[0] if key.startswith("lesam_")] == ["lesam_step"]
    assert other.steps == again.steps == 3
    assert again.param_groups[0]["lesam_square_mean"] == saved["param_groups"][0]["lesam_square_mean"] > 0


def test_bases_keep_numbers_of_their_own_apart():
    """Two bases in one method: the statistics are in the groups of both, and saved with both."""
    model = network()
    opt = AESAM.make([BASES["sgd"](model[0].parameters()), BASES["adamw"](model[2].parameters())])
    train(opt, model, 3)
    means = [group["lesam_square_mean"] for group in opt.state_dict()["param_groups"]]
    assert len(means) == 2
    assert means[0] == means[1] > 0


def test_a_gate_has_its_places_after_the_checkpoint_of_another_method():
    model = network()
    opt = lesam.AESAM(sgd(model))
    places = {key for key in opt.param_groups[0] if str(key).startswith("lesam_")}
    other = lesam.SAM(sgd(network()))
    opt.load_state_dict(other.state_dict())
    assert places <= set(opt.param_groups[0])
    assert len(places) > 1  # the step, and what the gate notes
