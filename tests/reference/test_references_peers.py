"""A second opinion: pytorch_optimizer, wherever it computes the same thing.

Read and run at version 4.1: its ``SAM`` is SAM; with ``adaptive=True`` it is ASAM with ``T = |w|`` on every
tensor, which is ours at ``eta = 0`` on networks without vectors; ``FriendlySAM`` and ``GSAM`` follow the
official codes; the coupled ``WSAM`` descends with ``a g_hat + (1 - a) g``, ``a = gamma / (1 - gamma)``, which
is LE-SAM+ at the cap with ``alpha = a - 1``. It keeps the global norm in float32, hence the tolerance.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from . import REFERENCES

pytorch_optimizer = pytest.importorskip("pytorch_optimizer")

SGD: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}
STEPS = 20
FLOAT32_NORM = 1e-6

Step = Callable[[Callable[[], Tensor]], object]


def train(make_step: Callable[[nn.Module], Step], bias: bool) -> Tensor:
    """Twenty mini-batch steps of a small classifier; returns its weights."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8, bias=bias), nn.Tanh(), nn.Linear(8, 3, bias=bias)).double()
    with torch.no_grad():
        for w in model.parameters():
            w.copy_(0.5 * torch.randn(w.shape, generator=generator))
    x = torch.randn(16, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (16,), generator=generator)
    step = make_step(model)
    for _ in range(STEPS):
        batch = torch.randperm(16, generator=generator)[:8]

        def closure(batch: Tensor = batch) -> Tensor:
            model.zero_grad()
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            return loss

        step(closure)
    return torch.cat([w.detach().flatten() for w in model.parameters()])


def reference(name: str, **options: Any) -> Callable[[nn.Module], Step]:
    def make_step(model: nn.Module) -> Step:
        base = torch.optim.SGD(model.parameters(), **SGD)
        return REFERENCES[name](list(model.parameters()), base, **options).step

    return make_step


def peer(name: str, **options: Any) -> Callable[[nn.Module], Step]:
    """SAM and FriendlySAM of the peer expect the first backward before ``step``."""

    def make_step(model: nn.Module) -> Step:
        optimizer = getattr(pytorch_optimizer, name)(model.parameters(), torch.optim.SGD, **options, **SGD)

        def step(closure: Callable[[], Tensor]) -> None:
            closure()
            optimizer.step(closure)

        return step

    return make_step


def peer_gsam(rho: float, alpha: float) -> Callable[[nn.Module], Step]:
    class Constant:
        def step(self) -> float:
            return rho

    def make_step(model: nn.Module) -> Step:
        base = torch.optim.SGD(model.parameters(), **SGD)
        optimizer = pytorch_optimizer.GSAM(model.parameters(), base, model, Constant(), alpha=alpha)

        def step(closure: Callable[[], Tensor]) -> None:
            optimizer.step(lambda: (None, torch.enable_grad()(closure)()))

        return step

    return make_step


def peer_wsam(rho: float, gamma: float) -> Callable[[nn.Module], Step]:
    def make_step(model: nn.Module) -> Step:
        options = {"rho": rho, "gamma": gamma, "decouple": False, **SGD}
        optimizer = pytorch_optimizer.WSAM(model, model.parameters(), torch.optim.SGD, **options)
        return lambda closure: optimizer.step(closure)

    return make_step


PAIRS = {
    "sam": (reference("sam", rho=0.2), peer("SAM", rho=0.2), True),
    "asam": (reference("asam", rho=0.5, eta=0.0), peer("SAM", rho=0.5, adaptive=True), False),
    "friendlysam": (
        reference("friendlysam", rho=0.2, weight=0.7, decay=0.6),
        peer("FriendlySAM", rho=0.2, sigma=0.7, lmbda=0.6),
        True,
    ),
    "gsam": (reference("gsam", rho=0.2, alpha=0.4), peer_gsam(rho=0.2, alpha=0.4), True),
    "lesamplus": (
        reference("lesamplus", sigma=1e9, rho_max=0.2, alpha=0.5),
        peer_wsam(rho=0.2, gamma=0.6),  # a = 0.6 / 0.4 = 1.5
        True,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_reference_agrees_with_the_peer(name: str) -> None:
    ours, theirs, bias = PAIRS[name]
    expected = train(theirs, bias)
    torch.testing.assert_close(train(ours, bias), expected, rtol=0.0, atol=FLOAT32_NORM)
    plain = train(reference("sam", rho=0.0), bias)
    assert (plain - expected).abs().max() > 1e3 * FLOAT32_NORM
