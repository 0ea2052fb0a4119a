"""bfloat16: autocast over float32 weights, and bfloat16 weights, whose rounding would swallow the perturbation."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lesam
from benchmarks.measuring import Gradients
from lesam.optim.selfcheck.counting import Bytes, Operations

from ..optim.cases import BASES, Case, batches, climbing, every_method, flat, network
from ..optim.faults import bits, both_styles, same_bits, step_once

RHO = 0.05


@pytest.fixture(scope="module")
def resnet18() -> tuple[list[Tensor], list[Tensor]]:
    """ResNet-18's weights and a gradient of its loss, in float32 (bfloat16 convolutions are slow on a CPU)."""
    torchvision = pytest.importorskip("torchvision")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torchvision.models.resnet18(num_classes=10)
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
        x, y = torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))
    gradients = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    return [p.detach() for p in model.parameters()], list(gradients)


# ---------------------------------------------------------------------- bfloat16 weights


@pytest.mark.parametrize("name", ["sam", "lesam"])
def test_bfloat16_weights_climb_as_far_as_asked(resnet18: tuple[list[Tensor], list[Tensor]], name: str):
    """A linear loss rises by ``<g, eps>``: it must be what was asked, and is half of it if rounded to the nearest."""
    w = [p.bfloat16() for p in resnet18[0]]
    g = [gradient.bfloat16() for gradient in resnet18[1]]
    parameters = [nn.Parameter(p.clone()) for p in w]
    length = flat([v.double() for v in g]).norm()
    sigma = 0.05 * float(length)
    options = {"rho": 0.05} if name == "sam" else {"sigma": sigma, "rho_max": None}
    opt = lesam.METHODS[name](torch.optim.SGD(parameters, lr=0.1), **options)

    def backward() -> float:
        """``L(w) = <g, w>``, summed in float64."""
        for p, gradient in zip(parameters, g, strict=True):
            p.backward(gradient)
        moves = ((p.detach().double() - old.double()) * v.double() for p, old, v in zip(parameters, w, g, strict=True))
        return float(sum(move.sum() for move in moves))

    with torch.no_grad():
        nearest = [(p.double() + sigma / length**2 * v.double()).bfloat16() for p, v in zip(w, g, strict=True)]
        share_moved = flat([a != b for a, b in zip(nearest, w, strict=True)]).double().mean()
        rises = ((a.double() - b.double()) * v.double() for a, b, v in zip(nearest, w, g, strict=True))
        rise_of_nearest = float(sum(rise.sum() for rise in rises))
    assert share_moved < 0.15
    assert rise_of_nearest < 0.6 * sigma

    with opt.clean():
        assert backward() == 0.0
    with opt.perturbed():
        assert backward() == pytest.approx(sigma, rel=0.03)
    assert same_bits(bits(parameters), bits(w))
    opt.step()
    assert opt.last.grad_norm.dtype == torch.float32
    assert float(opt.last.grad_norm) == pytest.approx(float(length), rel=1e-4)


def test_the_draw_is_repeatable_and_leaves_the_random_stream_alone():
    def perturbed_weights() -> tuple[list[Tensor], Tensor]:
        model = network(dtype=torch.bfloat16)
        opt = lesam.SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.01)
        x, y = next(batches(1, dtype=torch.bfloat16))
        torch.manual_seed(7)
        with opt.clean():
            nn.functional.cross_entropy(model(x), y).backward()
        with opt.perturbed():
            nn.functional.cross_entropy(model(x), y).backward()
            inside = bits(model.parameters())
        return inside, torch.rand(3)

    (first, stream), (second, same_stream) = perturbed_weights(), perturbed_weights()
    assert same_bits(first, second)
    torch.manual_seed(7)
    assert torch.equal(stream, torch.rand(3))
    assert torch.equal(same_stream, stream)


def test_every_step_draws_anew():
    """A weight that never moved would be a weight that is never perturbed."""
    model = nn.Linear(200, 10, bias=False).bfloat16()
    opt = lesam.SAM(torch.optim.SGD(model.parameters(), lr=0.0), rho=0.002)
    x, moved = torch.randn(4, 200, generator=torch.Generator().manual_seed(0)).bfloat16(), []
    before = model.weight.detach().clone()
    for _ in range(3):
        with opt.clean():
            model(x).float().square().mean().backward()
        with opt.perturbed():
            moved.append(model.weight.detach() != before)
            model(x).float().square().mean().backward()
        opt.step()
    assert all(0 < mask.double().mean() < 0.9 for mask in moved)
    assert not torch.equal(moved[0], moved[1])
    assert not torch.equal(moved[1], moved[2])


@every_method
@both_styles
def test_bfloat16_weights_train(case: Case, style: str):
    model = network(dtype=torch.bfloat16)
    opt = case.make(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5))
    batch = next(batches(1, dtype=torch.bfloat16))

    def loss() -> float:
        return float(nn.functional.cross_entropy(model(batch[0]).float(), batch[1]).detach())

    start = loss()
    for _ in range(25):
        step_once(opt, model, batch, style)
    assert loss() < 0.8 * start
    assert opt.steps == 25


def test_weights_of_two_dtypes():
    """bfloat16 tensors are rounded at random, float32 ones next to them are exact."""
    model = nn.Sequential(nn.Linear(64, 64).bfloat16(), nn.Linear(64, 3))
    opt = lesam.SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=RHO)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(16, 64, generator=generator).bfloat16(), torch.randint(0, 3, (16,), generator=generator)
    w = [p.detach().clone() for p in model.parameters()]
    with opt.clean():
        nn.functional.cross_entropy(model[1](model[0](x).float()), y).backward()
    g = [p.grad.clone() for p in model.parameters()]
    length = flat([t.float() for t in g]).norm()
    with opt.perturbed():
        inside = [p.detach().clone() for p in model.parameters()]
        nn.functional.cross_entropy(model[1](model[0](x).float()), y).backward()
    for old, new, grad in zip(w[2:], inside[2:], g[2:], strict=True):
        torch.testing.assert_close(new, old + RHO / length * grad, rtol=1e-6, atol=1e-7)
    realised = sum(float((a.double() - b.double()).mul(c.double()).sum()) for a, b, c in zip(inside, w, g, strict=True))
    assert realised == pytest.approx(RHO * float(length), rel=0.05)


@pytest.mark.parametrize("name", ["sam", "lesam"])
def test_a_hundred_draws_rise_by_what_was_asked_on_average(name: str):
    """Each weight's share of the perturbation is a tenth of the distance to the next bfloat16 number."""
    generator = torch.Generator().manual_seed(0)
    w, g = (torch.randn(100, 200, generator=generator).bfloat16() for _ in range(2))
    parameter, length = nn.Parameter(w.clone()), g.double().norm()
    options = {"rho": RHO} if name == "sam" else {"sigma": RHO * float(length), "rho_max": None}
    opt = lesam.METHODS[name](torch.optim.SGD([parameter], lr=0.0), **options)
    gradients, rises = Gradients([parameter], [g]), []

    def closure() -> Tensor:
        opt.zero_grad()
        loss = gradients.loss()
        loss.backward()
        rises.append(((parameter.detach().double() - w.double()) * g.double()).sum())
        return loss

    for _ in range(100):
        opt.step(closure)
    assert not any(rises[0::2])
    assert len({float(rise) for rise in rises[1::2]}) == 100
    assert float(torch.stack(rises[1::2]).mean()) == pytest.approx(RHO * float(length), rel=0.03)


# ---------------------------------------------------------------------- what bfloat16 weights cost


def steps(make: Callable, number: int, shape: tuple[int, ...]) -> tuple[Callable[[], None], Callable[[], None], int]:
    """One step on bfloat16 weights, the same passes and base step without the method, and the weights' bytes."""

    def step(wrap: Callable) -> tuple[Callable[[int], None], lesam.SharpnessAware]:
        parameters = [nn.Parameter(torch.randn(shape).bfloat16()) for _ in range(number)]
        gradients = Gradients(parameters)
        opt = wrap(torch.optim.SGD(parameters, lr=0.01, momentum=0.9, foreach=True))

        def closure() -> Tensor:
            opt.zero_grad()
            loss = gradients.loss()
            loss.backward()
            return loss

        return closure, opt

    (closure, opt), (bare, base) = step(make), step(lambda base: base)

    def without() -> None:
        for _ in range(opt.passes):
            bare()
        base.step()

    return (lambda: opt.step(closure)), without, 2 * number * math.prod(shape)


@every_method
@pytest.mark.parametrize(("number", "shape"), [(1, (64, 64)), (7, (64, 64)), (1000, (4, 4))])
def test_no_more_than_a_hundred_operations_whatever_the_number_of_tensors(
    case: Case, number: int, shape: tuple[int, ...]
):
    own = {"eigensam": {"every": 1000}}.get(case.name, {})  # refreshes are extra passes
    ours, bare, _ = steps(lambda base: climbing(case).make(base, **own), number, shape)
    for call in (ours, bare, ours, bare):
        call()
    with Operations() as counted:
        ours()
    with Operations() as without:
        bare()
    # LE-SAM+ may add the gradients of its two passes, one addition a tensor.
    assert counted.total - without.total <= 100 + {"lesamplus": 1, "crsam": 2}.get(case.name, 0) * number
    assert counted.host_reads == (case.name == "aesam")


@pytest.mark.parametrize("name", ["sam", "lesam"])
@pytest.mark.parametrize(("number", "shape"), [(1, (1024, 2048)), (1000, (16, 16)), (1000, (10, 10))])
def test_no_more_than_two_and_a_half_copies_of_bfloat16_weights(name: str, number: int, shape: tuple[int, ...]):
    """At the peak, above parameters and gradients; and no more than the backup while a pass runs."""
    parameters = [nn.Parameter(torch.randn(shape).bfloat16()) for _ in range(number)]
    gradients, size = Gradients(parameters), 2 * number * math.prod(shape)
    opt = lesam.METHODS[name](torch.optim.SGD(parameters, lr=0.01, foreach=False))

    def closure() -> Tensor:
        opt.zero_grad()
        loss = gradients.loss()
        loss.backward()
        return loss

    with Bytes() as followed:
        for _ in range(2):
            opt.step(closure)
    assert 2.0 * size <= followed.peak - size <= 2.5 * size
    assert followed.left - size <= 1.1 * size


# ---------------------------------------------------------------------- bfloat16 autocast


@every_method
@both_styles
def test_autocast_stays_near_float32_and_restores_exactly(case: Case, style: str):
    model, other = network(dtype=torch.float32), network(dtype=torch.float32)
    opt, plain = (case.make(BASES["sgd"](m.parameters())) for m in (model, other))

    class Autocast(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return model(x)

    for batch in batches(5, dtype=torch.float32):
        step_once(opt, Autocast(), batch, style)
        step_once(plain, other, batch, style)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    torch.testing.assert_close(flat(list(model.parameters())), flat(list(other.parameters())), rtol=0.05, atol=0.02)
    torch.testing.assert_close(opt.last.rho, plain.last.rho, rtol=0.05, atol=1e-3, equal_nan=True)


def test_a_closure_may_hold_the_autocast_region():
    model = network(dtype=torch.float32)
    opt = lesam.LESAM(BASES["sgd"](model.parameters()), model=model)
    before = bits(model.parameters())
    x, y = next(batches(1, dtype=torch.float32))
    seen = []

    def closure() -> Tensor:
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        seen.append(bits(model.parameters()))
        return loss

    opt.step(closure)
    assert same_bits(seen[0], before)
    assert not same_bits(seen[1], before)
