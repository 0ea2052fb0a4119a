"""Sparse, zero and non-finite gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from .cases import BASES, Case, batches, every_base, every_method, network
from .faults import bits, both_styles, model_bits, same_bits, step_in_style, step_once

NAN, INF = float("nan"), float("inf")


@every_method
@both_styles
def test_sparse_gradients_are_refused(case: Case, style: str):
    model = nn.Sequential(nn.Embedding(9, 3, sparse=True), nn.Linear(3, 3))
    opt = case.make(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    before = model_bits(model)
    batch = (torch.arange(9), torch.zeros(9, dtype=torch.long))
    with pytest.raises(RuntimeError, match="sparse=False"):
        step_once(opt, model, batch, style)
    assert same_bits(before, model_bits(model))


@every_method
@every_base
@both_styles
def test_a_zero_gradient_is_a_plain_base_step(case: Case, base_name: str, style: str):
    model, other = network(), network()
    opt, base = case.make(BASES[base_name](model.parameters())), BASES[base_name](other.parameters())

    def flat_loss(net: nn.Module) -> Tensor:
        return sum(0.0 * p.sum() for p in net.parameters())

    def closure() -> Tensor:
        opt.zero_grad()
        loss = flat_loss(model)
        loss.backward()
        return loss

    for _ in range(3):
        step_in_style(opt, closure, style)
        base.zero_grad()
        flat_loss(other).backward()
        base.step()
    assert same_bits(bits(model.parameters()), bits(other.parameters()))
    if opt.passes == 2:
        assert float(opt.last.rho) == 0.0
        assert float(opt.last.grad_norm) == 0.0


@every_method
@every_base
@both_styles
@pytest.mark.parametrize("value", [INF, -INF, NAN], ids=str)
def test_a_non_finite_gradient_ends_as_with_the_base_optimizer(case: Case, base_name: str, style: str, value: float):
    """One bad entry: nothing is perturbed, and what the base makes of it is its own affair."""
    model, other = network(), network()
    opt, base = case.make(BASES[base_name](model.parameters())), BASES[base_name](other.parameters())
    x, y = next(batches(1))
    inside: list[list[Tensor]] = []
    one = torch.zeros(7, 5, dtype=torch.bool)
    one[2, 3] = True
    for net in (model, other):
        net[0].weight.register_hook(lambda g: g.masked_fill(one, value))

    def backward(net: nn.Module) -> Tensor:
        inside.append(bits(net.parameters()))
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        return loss

    def closure() -> Tensor:
        opt.zero_grad()
        return backward(model)

    poisons = case.name != "esam"  # whose first backward may leave that tensor out
    before = bits(model.parameters())
    if style == "closure" or opt.passes > 2:
        opt.step(closure)
    else:
        if opt.passes == 2:
            with opt.clean():
                backward(model)
        with opt.perturbed():
            backward(model)
        assert same_bits(before, bits(model.parameters()))
        opt.step()
    assert not poisons or all(same_bits(before, seen) for seen in inside)
    backward(other)
    base.step()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(torch.isfinite(a), torch.isfinite(b))
        if poisons:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)
