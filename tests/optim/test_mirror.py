"""A third pass at ``w - eps``: where it is taken, what becomes of it, and what it refuses (CR-SAM)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lesam

from .cases import BASES, ONE_OF_EACH, batches, closure_for, flat, network, sgd, weights
from .faults import Fault, batch_norm_network, model_bits, same_bits, step_once

(CRSAM,) = (case for case in ONE_OF_EACH if case.name == "crsam")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_third_pass_is_the_second_reflected_at_the_weights(dtype: torch.dtype):
    model = network(dtype=dtype)
    opt = lesam.CRSAM(torch.optim.SGD(model.parameters(), lr=0.0), rho=0.5)
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda *_: seen.append(flat(list(model.parameters())).clone()))
    x, y = next(batches(1, dtype=dtype))
    opt.step(closure_for(opt, model, x, y))
    at, above, below = (weights.double() for weights in seen)
    assert float((above - at).norm()) == pytest.approx(0.5, rel=0.1 if dtype == torch.bfloat16 else 1e-5)
    resolution = torch.finfo(dtype).eps
    torch.testing.assert_close(at - below, above - at, rtol=0, atol=2 * resolution)


def test_on_a_quadratic_the_curvature_term_vanishes_and_the_slope_term_is_known():
    """L = w'Aw/2: g_plus + g_minus - 2 g = 0, g_plus - g_minus = 2 A eps; what is left is by hand."""
    A = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    w = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    start = w.detach().clone()
    opt = lesam.CRSAM(torch.optim.SGD([w], lr=0.1), rho=0.3, alpha=7.0, beta=0.25)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = w @ A @ w / 2
        loss.backward()
        return loss

    opt.step(closure)
    g = A @ start
    eps = 0.3 * g / g.norm()
    expected = start - 0.1 * (A @ (start + eps) + 0.25 * 2 * A @ eps)
    torch.testing.assert_close(w.detach(), expected, rtol=1e-12, atol=1e-12)
    assert float(opt.last.cost) == 3.0


def test_the_curvature_term_is_a_third_derivative():
    """L = w^4 / 4 in one dimension: (w + e)^3 + (w - e)^3 - 2 w^3 = 6 w e^2."""
    w = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    opt = lesam.CRSAM(torch.optim.SGD([w], lr=1.0), rho=0.5, alpha=0.4, beta=0.0)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = (w**4 / 4).sum()
        loss.backward()
        return loss

    opt.step(closure)
    assert float(w) == pytest.approx(2.0 - (2.5**3 + 0.4 * 6 * 2.0 * 0.25), rel=1e-12)


def test_equal_weights_need_no_third_pass_and_are_lesam_plus_at_a_fixed_radius():
    """alpha = beta = a: (1 + 2 a) g_hat - 2 a g."""
    ours, theirs = network(), network()
    opt = lesam.CRSAM(sgd(ours), rho=0.1, alpha=0.2, beta=0.2)
    twin = lesam.SharpnessAware(sgd(theirs), radius=lesam.Fixed(0.1), combine=lesam.excess(0.4))
    for x, y in batches(4):
        assert opt.passes == 2
        opt.step(closure_for(opt, ours, x, y))
        twin.step(closure_for(twin, theirs, x, y))
    torch.testing.assert_close(flat(weights(ours)), flat(weights(theirs)), rtol=1e-12, atol=1e-13)
    assert float(opt.last.cost) == 2.0


def test_a_weight_may_be_a_schedule_that_brings_the_third_pass_late():
    model = network()
    opt = lesam.CRSAM(sgd(model), alpha=lambda step: 0.1 * (step >= 2), beta=0.0)
    passes = []
    for x, y in batches(4):
        passes.append(opt.passes)
        opt.step(closure_for(opt, model, x, y))
        assert float(opt.last.cost) == passes[-1]
    assert passes == [2, 2, 3, 3]


@pytest.mark.parametrize("perturbation", ["global", "local"])
def test_micro_batches(perturbation: str):
    """Global: the whole batch. Local: the mean of steps on each, with an ascent of its own."""
    ours, theirs = network(), network()
    opt = CRSAM.make(sgd(ours), perturbation=perturbation)
    base = sgd(theirs)
    for x, y in batches(3):
        parts = list(zip(x.split(8), y.split(8), strict=True))
        opt.step([closure_for(opt, ours, *part) for part in parts])
        mean = [torch.zeros_like(p) for p in theirs.parameters()]
        for a, b in parts if perturbation == "local" else [(x, y)]:
            twin = network()
            twin.load_state_dict(theirs.state_dict())
            probe = CRSAM.make(torch.optim.SGD(twin.parameters(), lr=1.0))
            probe.step(closure_for(probe, twin, a, b))
            for m, w, v in zip(mean, theirs.parameters(), twin.parameters(), strict=True):
                m += (w - v).detach() / (2 if perturbation == "local" else 1)
        for p, m in zip(theirs.parameters(), mean, strict=True):
            p.grad = m
        base.step()
        assert float(opt.last.cost) == 3.0
    torch.testing.assert_close(flat(weights(ours)), flat(weights(theirs)), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("after_backward", [False, True])
def test_an_error_in_the_second_or_third_pass_leaves_nothing(call: int, after_backward: bool):
    model = batch_norm_network()
    opt = CRSAM.make(BASES["sgd"](model.parameters()), model=model)
    data = list(batches(3))
    step_once(opt, model, data[0])
    before = model_bits(model)
    with pytest.raises(RuntimeError, match="on purpose"):
        step_once(opt, model, data[1], fault=Fault(RuntimeError, call, after_backward))
    assert same_bits(before, model_bits(model))
    assert opt.steps == 1
    step_once(opt, model, data[2])
    assert opt.steps == 2


def test_a_third_pass_without_backward():
    model = network()
    opt = CRSAM.make(sgd(model))
    x, y = next(batches(1))
    before, calls = model_bits(model), []

    def closure() -> Tensor:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        calls.append(loss)
        if len(calls) < 3:
            loss.backward()
        return loss

    with pytest.raises(RuntimeError, match="third pass left no gradient"):
        opt.step(closure)
    assert same_bits(before, model_bits(model))


def test_running_statistics_follow_the_clean_pass_alone():
    model, plain = batch_norm_network(), batch_norm_network()
    opt = CRSAM.make(BASES["sgd"](model.parameters()), model=model)
    x, y = next(batches(1))
    plain(x)
    opt.step(closure_for(opt, model, x, y))
    assert torch.equal(model[1].running_mean, plain[1].running_mean)
    assert int(model[1].num_batches_tracked) == 1


def test_a_gate_goes_with_it():
    model = network()
    gate = lesam.LargeGradients(lambda step: 100.0 if step % 2 else -100.0)
    opt = lesam.CRSAM(sgd(model), gate=gate)
    costs = []
    for x, y in batches(4):
        opt.step(closure_for(opt, model, x, y))
        costs.append(float(opt.last.cost))
    assert costs == [3.0, 1.0, 3.0, 1.0]


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize("context", ["clean", "perturbed"])
def test_contexts_are_for_two_passes(context: str):
    model = network()
    opt = CRSAM.make(sgd(model))
    with pytest.raises(RuntimeError, match=r"three passes.*closures only"), getattr(opt, context)():
        pass
    opt = CRSAM.make(sgd(model), when=lesam.schedules.from_step(1))  # a plain step has one pass, in a context too
    x, y = next(batches(1))
    with opt.perturbed():
        nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
    assert float(opt.last.cost) == 1.0


def test_pairings_without_a_meaning():
    with pytest.raises(ValueError, match="w - eps would choose others"):
        lesam.CRSAM(sgd(), samples=lesam.TopSamples(0.5))
    with pytest.raises(ValueError, match="never computes it"):
        lesam.SharpnessAware(sgd(), direction=lesam.Stale(), combine=lesam.curvature(0.1, 0.0))
