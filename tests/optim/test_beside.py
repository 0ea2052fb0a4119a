"""A step beside the base optimizer's: decoupled WSAM, which under plain SGD is the coupled form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lesam

from .cases import batches, closure_for, network, weights
from .faults import both_styles, step_once


def two_rates(model: nn.Sequential, **options: Any) -> torch.optim.SGD:
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.3}]
    return torch.optim.SGD(groups, lr=0.1, **options)


def two_bases(model: nn.Sequential) -> list[torch.optim.Optimizer]:
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    return [first, torch.optim.SGD(model[2].parameters(), lr=0.02, maximize=True)]


BASES = {
    "rates of groups": two_rates,
    "maximized": lambda model: two_rates(model, maximize=True),
    "several bases": two_bases,
    "a rate that is a tensor": lambda model: torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1)),
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("max_norm", [None, 0.05])
@both_styles
def test_plain_sgd_cannot_tell_the_forms_apart(base: str, max_norm: float | None, style: str):
    """Each parameter at the rate and in the direction of its base; a clipped step is clipped as one."""
    decoupled, coupled = network(), network()
    opt = lesam.WSAM(BASES[base](decoupled), rho=0.1, gamma=0.8, max_norm=max_norm)
    reference = lesam.WSAM(BASES[base](coupled), rho=0.1, gamma=0.8, decoupled=False, max_norm=max_norm)
    for batch in batches(4):
        step_once(opt, decoupled, batch, style)
        step_once(reference, coupled, batch, style)
    for a, b in zip(weights(decoupled), weights(coupled), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_micro_batches_with_perturbations_of_their_own_share_one_step():
    decoupled, coupled = network(), network()
    opt = lesam.WSAM(two_rates(decoupled), rho=0.1, perturbation="local")
    reference = lesam.WSAM(two_rates(coupled), rho=0.1, decoupled=False, perturbation="local")
    for x, y in batches(3):
        halves = list(zip(x.chunk(2), y.chunk(2), strict=True))
        opt.step([closure_for(opt, decoupled, *half) for half in halves])
        reference.step([closure_for(reference, coupled, *half) for half in halves])
    for a, b in zip(weights(decoupled), weights(coupled), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_momentum_tells_them_apart():
    """The sharpness does not enter the momentum: its buffer is that of plain gradients at these weights."""
    model = network()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt = lesam.WSAM(base, rho=0.1)
    buffers = [torch.zeros_like(p) for p in model.parameters()]
    for x, y in batches(3):
        plain = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
        buffers = [0.9 * v + g for v, g in zip(buffers, plain, strict=True)]
        opt.step(closure_for(opt, model, x, y))
    for p, v in zip(model.parameters(), buffers, strict=True):
        torch.testing.assert_close(base.state[p]["momentum_buffer"], v, rtol=1e-9, atol=1e-12)


def test_bases_beside_which_nothing_can_go_are_refused():
    class ScheduleFree(torch.optim.SGD):
        def train(self) -> None: ...
        def eval(self) -> None: ...

    model = network()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    del base.param_groups[0]["lr"]
    for refused, words in ((ScheduleFree(model.parameters(), lr=0.1), "ScheduleFree"), (base, "no lr")):
        with pytest.raises(ValueError, match=rf"{words}.*decoupled=False"):
            lesam.WSAM(refused)
    lesam.WSAM(ScheduleFree(model.parameters(), lr=0.1), decoupled=False)
