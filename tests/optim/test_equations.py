"""The paper's equations as properties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import lesam

from .cases import batches, closure_for, flat, network, weights

settings.register_profile("lesam", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("lesam")

seeds = st.integers(0, 10_000)
budgets = st.floats(1e-3, 2.0)


def sgd(params, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(params, lr=lr)


class Probe:
    """A loss on a vector ``w``, and what one step of an optimizer does with it."""

    def __init__(self, loss, w: Tensor, make, **options) -> None:
        self.w = nn.Parameter(w.clone())
        self.visited: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.opt = make(sgd([self.w]), **options)
        self.loss = loss

    def closure(self) -> Tensor:
        self.opt.zero_grad()
        self.visited.append(self.w.detach().clone())
        value = self.loss(self.w)
        value.backward()
        self.gradients.append(torch.autograd.grad(self.loss(self.w), self.w)[0].detach())
        return value

    def step(self) -> Probe:
        self.before = self.w.detach().clone()
        self.opt.step(self.closure)
        return self

    @property
    def eps(self) -> Tensor:
        return self.visited[-1] - self.visited[0]

    @property
    def update(self) -> Tensor:
        """The gradient the base optimizer got."""
        return (self.before - self.w.detach()) / 0.1


def quadratic(seed: int, n: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """A positive definite matrix, a shift, and a starting point."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(n, n, generator=generator, dtype=torch.float64)
    h = a @ a.T / n + 0.1 * torch.eye(n, dtype=torch.float64)
    return h, torch.randn(n, generator=generator, dtype=torch.float64), torch.randn(n, generator=generator).double()


# ---------------------------------------------------------------- the loss-equated radius


@given(seeds, budgets)
def test_on_a_quadratic_the_excess_over_the_budget_is_the_curvature_term(seed: int, sigma: float):
    """L(w + eps) - L(w) - sigma = eps' H eps / 2, and <g, eps> = sigma."""
    h, c, w = quadratic(seed)
    loss = lambda v: 0.5 * v @ h @ v + c @ v  # noqa: E731
    probe = Probe(loss, w, lesam.LESAM, sigma=sigma, rho_max=None).step()
    g, eps = probe.gradients[0], probe.eps
    assert torch.allclose(g @ eps, torch.tensor(sigma, dtype=torch.float64), rtol=1e-9)
    excess = loss(w + eps) - loss(w) - sigma
    assert torch.allclose(excess, 0.5 * eps @ h @ eps, rtol=1e-6, atol=1e-9)


@given(seeds, budgets)
def test_no_shorter_vector_meets_the_budget(seed: int, sigma: float):
    """eps has the smallest norm of all vectors with <g, eps> = sigma: adding anything orthogonal to g lengthens it."""
    h, c, w = quadratic(seed)
    probe = Probe(lambda v: 0.5 * v @ h @ v + c @ v, w, lesam.LESAM, sigma=sigma, rho_max=None).step()
    g, eps = probe.gradients[0], probe.eps
    other = torch.randn(6, generator=torch.Generator().manual_seed(seed + 1)).double()
    other = other - (other @ g) / (g @ g) * g
    rival = eps + other * eps.norm() / other.norm()
    assert torch.allclose(g @ rival, torch.tensor(sigma, dtype=torch.float64), rtol=1e-9)
    assert eps.norm() < rival.norm()
    assert torch.allclose(eps, sigma * g / (g @ g), rtol=1e-9)


@given(st.floats(0.1, 10), st.floats(0.2, 5), budgets)
def test_closed_form_in_one_dimension(h: float, w: float, sigma: float):
    """On h w^2 / 2: eps = sigma / (h w), the rise is sigma + sigma^2 / (2 h w^2), g_hat = h w + sigma / w."""
    probe = Probe(
        lambda v: 0.5 * h * v @ v, torch.tensor([w], dtype=torch.float64), lesam.LESAM, sigma=sigma, rho_max=None
    ).step()
    assert math.isclose(probe.eps.item(), sigma / (h * w), rel_tol=1e-9)
    rise = float(probe.opt.last.perturbed_loss - probe.opt.last.loss)
    assert math.isclose(rise, sigma + sigma**2 / (2 * h * w**2), rel_tol=1e-6)
    assert math.isclose(probe.update.item(), h * w + sigma / w, rel_tol=1e-6)


@given(seeds, budgets)
def test_on_a_linear_loss_the_rise_is_the_budget(seed: int, sigma: float):
    _, c, w = quadratic(seed)
    probe = Probe(lambda v: c @ v, w, lesam.LESAM, sigma=sigma, rho_max=None).step()
    assert math.isclose(float(probe.opt.last.perturbed_loss - probe.opt.last.loss), sigma, rel_tol=1e-6)


@given(seeds, st.floats(0.05, 20))
def test_scaling_the_loss_divides_the_radius_and_leaves_sam_alone(seed: int, factor: float):
    h, c, w = quadratic(seed)
    for method, options, expected in (
        (lesam.LESAM, {"sigma": 0.2, "rho_max": None}, 1 / factor),
        (lesam.SAM, {"rho": 0.2}, 1.0),
    ):
        plain = Probe(lambda v: 0.5 * v @ h @ v + c @ v, w, method, **options).step()
        scaled = Probe(lambda v: factor * (0.5 * v @ h @ v + c @ v), w, method, **options).step()
        assert torch.allclose(scaled.eps, plain.eps * expected, rtol=1e-8)


@given(seeds, st.floats(0.01, 0.5))
def test_the_cap_binds_exactly_where_the_budget_reaches_further(seed: int, rho_max: float):
    h, c, w = quadratic(seed)
    probe = Probe(lambda v: 0.5 * v @ h @ v + c @ v, w, lesam.LESAM, sigma=0.3, rho_max=rho_max).step()
    wanted = 0.3 / probe.gradients[0].norm()
    assert torch.allclose(probe.eps.norm(), wanted.clamp(max=rho_max), rtol=1e-8)
    assert bool(probe.opt.last.capped) == bool(wanted >= rho_max)
    assert torch.allclose(probe.opt.last.rho, probe.eps.norm(), rtol=1e-8)


DIRECTIONS = {
    "gradient": lesam.Gradient,
    "noise": lambda: lesam.Noise(0.8, 0.7),
    "eigenvector": lambda: lesam.TopEigenvector(0.5, every=2, iterations=4),
    "eigenvector-top": lambda: lesam.TopEigenvector(0.5, every=2, iterations=4, form="top"),
}
METRICS = {
    "euclidean": lesam.Euclidean,
    "adaptive": lambda: lesam.Adaptive(0.1),
    "fisher": lambda: lesam.DiagonalFisher(2.0),
}


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("combine", ["perturbed", "gap", "excess"])
def test_the_budget_is_met_in_every_geometry_and_direction(direction: str, metric: str, combine: str):
    """<g, eps> = sigma, whichever way up is taken; also where the direction points downhill (Noise)."""
    model = network()
    opt = lesam.SharpnessAware(
        sgd(model.parameters()),
        direction=DIRECTIONS[direction](),
        metric=METRICS[metric](),
        radius=lesam.LossBudget(0.01, rho_max=1e6),
        combine={"perturbed": lesam.perturbed, "gap": lesam.gap(0.3), "excess": lesam.excess(0.3)}[combine],
    )
    downhill = 0
    for x, y in batches(8):
        visited, gradients = [], []

        def closure(x=x, y=y, visited=visited, gradients=gradients):
            opt.zero_grad()
            visited.append(flat(weights(model)))
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            gradients.append(
                flat(list(torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))))
            )
            return loss

        opt.step(closure)
        g, eps = gradients[-2], visited[-1] - visited[-2]
        assert torch.allclose(g @ eps, torch.tensor(0.01, dtype=torch.float64), rtol=1e-6)
        assert torch.allclose(opt.last.slope * opt.last.rho, torch.tensor(0.01, dtype=torch.float64), rtol=1e-6)
        downhill += int(opt.last.rho < 0)
    if direction == "noise":
        assert opt.last.rho != 0


def test_a_direction_that_points_downhill_is_climbed_backwards():
    """Friendly-SAM's noise with a heavy average: <g, g - weight m> < 0, so rho is negative and the loss still rises."""
    w = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
    opt = lesam.SharpnessAware(
        sgd([w], lr=1e-6), direction=lesam.Noise(5.0, 0.9), radius=lesam.LossBudget(0.1, rho_max=10.0)
    )

    def closure():
        opt.zero_grad()
        loss = (w * w).sum() / 2
        loss.backward()
        return loss

    opt.step(closure)
    assert opt.last.rho > 0  # no average yet
    opt.step(closure)
    assert opt.last.rho < 0
    assert opt.last.perturbed_loss - opt.last.loss > 0.1


# ---------------------------------------------------------------- the other methods' identities


@given(seeds, st.floats(0.05, 1.0), st.floats(0.01, 0.5))
def test_gsam_removes_alpha_times_the_orthogonal_part(seed: int, alpha: float, rho: float):
    h, c, w = quadratic(seed)
    probe = Probe(lambda v: 0.5 * v @ h @ v + c @ v, w, lesam.GSAM, alpha=alpha, rho=rho).step()
    g, g_hat = probe.gradients
    correction = probe.update - g_hat
    orthogonal = g - (g @ g_hat) / (g_hat @ g_hat) * g_hat
    assert abs(correction @ g_hat) < 1e-8 * g_hat.norm() ** 2
    assert torch.allclose(correction, -alpha * orthogonal, rtol=1e-5, atol=1e-8 * float(g.norm()))


@given(seeds, st.floats(0.01, 2.0))
def test_ssam_keeps_the_length_of_the_clean_gradient(seed: int, rho: float):
    h, c, w = quadratic(seed)
    probe = Probe(lambda v: 0.5 * v @ h @ v + c @ v, w, lesam.SSAM, rho=rho).step()
    g, g_hat = probe.gradients
    assert torch.allclose(probe.update.norm(), g.norm(), rtol=1e-7)
    assert torch.allclose(probe.update / probe.update.norm(), g_hat / g_hat.norm(), atol=1e-7)


@given(seeds)
def test_eigen_sam_finds_the_top_eigenvector_and_perturbs_by_its_formula(seed: int):
    n = 8
    basis = torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))[0]
    h = basis @ torch.diag(torch.tensor([9.0, 3, 2, 1, 1, 0.5, 0.2, 0.1], dtype=torch.float64)) @ basis.T
    w = torch.randn(n, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    probe = Probe(lambda v: 0.5 * v @ h @ v, w, lesam.EigenSAM, rho=0.3, alpha=0.4, every=1, iterations=30)
    probe.step()  # step 0 never refreshes
    probe.visited.clear()
    probe.gradients.clear()
    probe.step()
    v = probe.opt.state_dict()["state"][0]["lesam_eigenvector"]
    assert abs(v @ basis[:, 0]) > 1 - 1e-9
    g, eps = probe.gradients[-2], probe.visited[-1] - probe.visited[-2]
    u = g / g.norm()
    expected = 0.3 * (u + 0.4 * torch.sign(g @ v) * (v - (v @ u) * u))
    assert torch.allclose(eps, expected, rtol=1e-7, atol=1e-9)
    assert eps.norm() > 0.3  # not rescaled


@given(st.floats(0.2, 5.0))
def test_asam_follows_a_rescaling_of_relu_layers(a: float):
    """Two nets that compute the same function stay the same function: the perturbation scales with the weights."""
    torch.manual_seed(0)
    x, y = torch.randn(12, 4).double(), torch.randn(12, 2).double()

    def perturbed_output(scale: float) -> Tensor:
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 2, bias=False)).double()
        with torch.no_grad():
            net[0].weight.mul_(scale)
            net[2].weight.div_(scale)
        opt = lesam.ASAM(sgd(net.parameters()), rho=0.3, eta=0.0)
        with opt.clean():
            (net(x) - y).square().mean().backward()
        with opt.perturbed():
            out = net(x).detach()
            (net(x) - y).square().mean().backward()
        return out

    assert torch.allclose(perturbed_output(a), perturbed_output(1.0), rtol=1e-8, atol=1e-10)


# ---------------------------------------------------------------- one norm for everything


def test_one_norm_over_all_groups():
    """The radius is that of the whole model, not of each group or tensor."""
    model = network()
    groups = [{"params": [p], "lr": 0.01 * (i + 1)} for i, p in enumerate(model.parameters())]
    opt = lesam.LESAM(torch.optim.SGD(groups, lr=0.1), sigma=0.02, rho_max=None)
    x, y = next(batches(1))
    before = flat(weights(model))
    with opt.clean():
        nn.functional.cross_entropy(model(x), y).backward()
    g = flat([p.grad for p in model.parameters()])
    with opt.perturbed():
        eps = flat(weights(model)) - before
        nn.functional.cross_entropy(model(x), y).backward()
    assert torch.allclose(eps, 0.02 * g / (g @ g), rtol=1e-9)


@pytest.mark.parametrize("method", [lesam.LESAM, lesam.LESAMPlus, lesam.SAM])
def test_weight_decay_is_not_part_of_the_climb(method):
    """The base optimizer's decay acts on the restored weights and never enters the direction or the norm."""
    model = network()
    opt = method(torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=100.0))
    x, y = next(batches(1))
    opt.step(closure_for(opt, model, x, y))
    other = network()
    loss = nn.functional.cross_entropy(other(x), y)
    g = flat(list(torch.autograd.grad(loss, list(other.parameters()))))
    assert torch.allclose(opt.last.grad_norm, g.norm())


def test_autocast_around_the_whole_step_sees_the_perturbed_weights():
    """Autocast caches low-precision copies of the weights; the second pass must not run on those of the first."""
    model = network(dtype=torch.float32)
    opt = lesam.SAM(sgd(model.parameters()), rho=10.0)
    x, y = next(batches(1, dtype=torch.float32))
    with torch.autocast("cpu", torch.bfloat16):
        opt.step(closure_for(opt, model, x, y))
        moved = float(opt.last.perturbed_loss - opt.last.loss)
        after = float(nn.functional.cross_entropy(model(x), y).detach())
    with torch.autocast("cpu", torch.bfloat16):
        fresh = float(nn.functional.cross_entropy(model(x), y).detach())
    assert moved > 1.0
    assert after == fresh
