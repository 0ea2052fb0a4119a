"""What other implementations get wrong, one test for each: it is right here.

Restoring, checkpoints, BatchNorm and misuse have files of their own; this one holds what is left, and the loop that
people come from.
"""

from __future__ import annotations

import inspect
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lesam

from .cases import BASES, Case, batches, closure_for, every_base, every_method, every_method_in_contexts, network
from .faults import bits, both_styles, same_bits, step_once

# ---------------------------------------------------------------------- moving from two calls


class TwoCalls:
    """The widespread form: the user runs both backwards and calls twice."""

    def __init__(self, parameters: list[Tensor], base: torch.optim.Optimizer, rho: float) -> None:
        self.parameters, self.base, self.rho = parameters, base, rho
        self.old: list[Tensor] = []

    @torch.no_grad()
    def first_step(self) -> None:
        length = torch.cat([p.grad.flatten() for p in self.parameters]).norm()
        self.old = [p.clone() for p in self.parameters]
        for p in self.parameters:
            p.add_(p.grad * (self.rho / (length + 1e-12)))
        self.base.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for p, old in zip(self.parameters, self.old, strict=True):
            p.copy_(old)
        self.base.step()
        self.base.zero_grad()


@every_base
@both_styles
def test_equals_a_loop_of_first_step_and_second_step(base_name: str, style: str):
    ours, theirs = network(), network()
    opt = lesam.SAM(BASES[base_name](ours.parameters()), rho=0.1)
    two_calls = TwoCalls(list(theirs.parameters()), BASES[base_name](theirs.parameters()), rho=0.1)
    for x, y in batches(25):
        step_once(opt, ours, (x, y), style)
        nn.functional.cross_entropy(theirs(x), y).backward()
        two_calls.first_step()
        nn.functional.cross_entropy(theirs(x), y).backward()
        two_calls.second_step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


# ---------------------------------------------------------------------- state


@every_method
def test_the_checkpoint_is_at_least_that_of_the_base(case: Case):
    """Users saw files half the size of Adam's, and a spike of the loss on resuming."""

    def size(state: dict[str, Any]) -> int:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        return buffer.tell()

    model, other = network(), network()
    opt, adam = case.make(BASES["adamw"](model.parameters())), BASES["adamw"](other.parameters())
    for x, y in batches(2):
        step_once(opt, model, (x, y))
        nn.functional.cross_entropy(other(x), y).backward()
        adam.step()
    assert size(opt.state_dict()) >= size(adam.state_dict())
    for entries in opt.state_dict()["state"].values():
        assert {"exp_avg", "exp_avg_sq", "step"} <= set(entries)


@pytest.mark.parametrize("name", ["friendlysam", "s2sam", "eigensam"])
def test_our_buffers_do_not_defeat_the_lazy_state_of_the_base(name: str):
    """Adam makes its moments where a parameter's state is empty; ours must not be found there."""
    model = network()
    base = torch.optim.AdamW(model.parameters(), lr=0.01)
    opt = lesam.METHODS[name](base)
    base.param_groups[0]["lr"] = 0.0
    opt.step()  # allocates ours
    base.param_groups[0]["lr"] = 0.01
    assert not any(str(key).startswith("lesam") for entries in base.state.values() for key in entries)
    for batch in batches(3):
        step_once(opt, model, batch)
    assert all({"exp_avg", "exp_avg_sq", "step"} <= set(base.state[p]) for p in model.parameters())
    assert not any(str(key).startswith("lesam") for entries in base.state.values() for key in entries)


@every_method
def test_many_groups_remember_apart(case: Case):
    """Twelve groups of twelve parameters: state keyed by numbers run together would confuse (1, 11) with (11, 1)."""

    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(0)
            self.w = nn.ParameterList(
                nn.Parameter(torch.randn(3, 5, generator=generator, dtype=torch.float64) / 20) for _ in range(144)
            )

        def forward(self, x: Tensor) -> Tensor:
            return sum(torch.tanh(x * (1 + i / 50)) @ w.T for i, w in enumerate(self.w))

    ends = []
    for groups in (1, 12):
        model = Many()
        everything, size = list(model.w), 144 // groups
        opt = case.make(BASES["sgd"]([{"params": everything[i : i + size]} for i in range(0, 144, size)]))
        for batch in batches(4):
            step_once(opt, model, batch)
        ends.append(torch.stack([w.detach() for w in model.w]))
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------------- perturbing and restoring


class Switch(nn.Module):
    """Two experts, one used at a time."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.experts = nn.ModuleList(nn.Linear(5, 3).double() for _ in range(2))
        self.used = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.experts[self.used](x)


@pytest.mark.parametrize("name", sorted(set(lesam.METHODS) - {"msam"}))
@both_styles
def test_a_parameter_without_gradient_in_a_step_does_not_move_in_it(name: str, style: str):
    """No stale perturbation is taken off an expert that was used in the step before."""
    model = Switch()
    options = {"gamma": 1.0, "beta": 1.0} if name == "esam" else {}
    opt = lesam.METHODS[name](torch.optim.SGD(model.parameters(), lr=0.1), **options)
    for step, batch in enumerate(batches(6)):
        model.used = step % 2
        before = bits(model.experts[1 - model.used].parameters())
        step_once(opt, model, batch, style)
        assert same_bits(before, bits(model.experts[1 - model.used].parameters()))


@pytest.mark.parametrize("base_name", ["sgd", "adamw"])
@both_styles
def test_a_radius_schedule_does_not_make_the_weights_drift(base_name: str, style: str):
    """Taking the perturbation back with the next step's radius would: at learning rate 0 nothing may move."""
    model = network()
    base = BASES[base_name](model.parameters())
    base.param_groups[0]["lr"] = 0.0
    opt = lesam.MSAM(base, rho=lambda step: 1.0 + step)
    start = bits(model.parameters())
    for batch in batches(6):
        step_once(opt, model, batch, style)
    assert same_bits(start, bits(model.parameters()))
    assert float(opt.last.rho) == 6.0


@pytest.mark.parametrize("beta", [0.2, 0.6])
@both_styles
def test_esam_leaves_every_parameter_as_trainable_as_it_was(beta: float, style: str):
    model = network()
    model[0].weight.requires_grad_(False)
    opt = lesam.ESAM(torch.optim.SGD(model.parameters(), lr=0.1), beta=beta, gamma=1.0)
    frozen = bits([model[0].weight])
    for batch in batches(10):
        step_once(opt, model, batch, style)
        assert [p.requires_grad for p in model.parameters()] == [False, True, True, True]
    assert same_bits(frozen, bits([model[0].weight]))


def test_esam_keeps_exactly_the_asked_share_of_samples_ties_by_index():
    for gamma, size, kept in [(0.5, 8, 4), (0.5, 7, 4), (0.1, 30, 3), (0.01, 5, 1), (1.0, 6, 6)]:
        tied = lesam.TopSamples(gamma).keep(torch.zeros(size))
        assert tied.tolist() == list(range(kept))
    rises = torch.tensor([0.2, 0.9, -0.3, 0.9, 0.5])
    assert lesam.TopSamples(0.6).keep(rises).tolist() == [1, 3, 4]


# ---------------------------------------------------------------------- the perturbation itself


def perturbation_of(opt: lesam.SharpnessAware, model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """What the coming step adds to the weights; takes the step."""
    start = [p.detach().clone() for p in model.parameters()]
    if opt.passes == 2:
        with opt.clean():
            nn.functional.cross_entropy(model(x), y).backward()
    with opt.perturbed():
        eps = [p.detach() - w for p, w in zip(model.parameters(), start, strict=True)]
        nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
    return eps


def flat(tensors: Any) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])


def test_sam_divides_by_one_norm_over_everything():
    model = network()
    opt = lesam.SAM(BASES["sgd"](model.parameters()), rho=0.25)
    for x, y in batches(3):
        g = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
        eps = flat(perturbation_of(opt, model, x, y))
        torch.testing.assert_close(eps, 0.25 * flat(g) / flat(g).norm(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("base_name", "key"), [("sgd", "momentum_buffer"), ("adamw", "exp_avg")])
def test_msam_looks_ahead_along_minus_the_buffer_with_one_norm(base_name: str, key: str):
    model = network()
    opt = lesam.MSAM(BASES[base_name](model.parameters()), rho=0.7)
    for step, (x, y) in enumerate(batches(4)):
        buffers = [opt.base.state[p][key].clone() for p in model.parameters()] if step else []
        eps = flat(perturbation_of(opt, model, x, y))
        if step == 0:
            assert not eps.any()
        else:
            torch.testing.assert_close(eps, -0.7 * flat(buffers) / flat(buffers).norm(), rtol=1e-9, atol=1e-12)


def test_s2sam_really_perturbs_by_the_last_perturbed_gradient():
    """Though zero_grad() has set the gradients to None since."""
    model = network()
    opt = lesam.S2SAM(BASES["sgd"](model.parameters()), rho=0.3)
    last: list[Tensor] = []
    opt.base.register_step_pre_hook(lambda *_: last.append(flat(p.grad for p in model.parameters()).clone()))
    for step, (x, y) in enumerate(batches(4)):
        opt.zero_grad()
        eps = flat(perturbation_of(opt, model, x, y))
        if step == 0:
            assert not eps.any()
        else:
            torch.testing.assert_close(eps, 0.3 * last[-2] / last[-2].norm(), rtol=1e-9, atol=1e-12)


def test_asam_scales_weights_and_leaves_biases_alone():
    model = network()
    opt = lesam.ASAM(BASES["sgd"](model.parameters()), rho=0.5, eta=0.01)
    x, y = next(batches(1))
    w = [p.detach().clone() for p in model.parameters()]
    g = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    T = [p.abs() + 0.01 if p.ndim > 1 else torch.ones_like(p) for p in w]
    length = flat(t * h for t, h in zip(T, g, strict=True)).norm()
    expected = flat(0.5 * t * t * h / length for t, h in zip(T, g, strict=True))
    torch.testing.assert_close(flat(perturbation_of(opt, model, x, y)), expected, rtol=1e-9, atol=1e-12)


def test_friendly_sam_averages_the_raw_gradient_not_the_residual():
    model = network()
    opt = lesam.FriendlySAM(torch.optim.SGD(model.parameters(), lr=0.0), rho=0.2, weight=1.0, decay=0.9)
    m: Tensor | None = None
    for x, y in batches(5):
        g = flat(torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters())))
        d = g if m is None else g - m
        m = g if m is None else 0.9 * m + 0.1 * g
        eps = flat(perturbation_of(opt, model, x, y))
        torch.testing.assert_close(eps, 0.2 * d / d.norm(), rtol=1e-8, atol=1e-11)


def test_eigen_sam_before_its_first_refresh_is_normalised_sam():
    model, other = network(), network()
    opt = lesam.EigenSAM(BASES["sgd"](model.parameters()), rho=0.2, alpha=0.5, every=50)
    sam = lesam.SAM(BASES["sgd"](other.parameters()), rho=0.2)
    for batch in batches(4):
        step_once(opt, model, batch)
        step_once(sam, other, batch)
    torch.testing.assert_close(flat(model.parameters()), flat(other.parameters()), rtol=1e-10, atol=1e-12)


def test_eigen_sam_is_not_renormalised():
    """|eps| = rho * sqrt(1 + alpha^2 |v_perp|^2), and <g, eps> = rho |g|."""
    model = network()
    opt = lesam.EigenSAM(torch.optim.SGD(model.parameters(), lr=0.0), rho=0.2, alpha=0.5, every=1, iterations=8)
    (x, y), *_ = batches(1)
    for step in range(2):
        if step == 1:
            opt.refresh(closure_for(opt, model, x, y))
        g = flat(torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters())))
        eps = flat(perturbation_of(opt, model, x, y))
    v = flat(opt.state_dict()["state"][number]["lesam_eigenvector"] for number in range(4))
    assert float(v.norm()) == pytest.approx(1.0)
    u = g / g.norm()
    perp = v - (u @ v) * u
    torch.testing.assert_close(eps, 0.2 * (u + 0.5 * torch.sign(g @ v) * perp), rtol=1e-7, atol=1e-10)
    assert float(eps.norm()) == pytest.approx(0.2 * math.sqrt(1 + 0.25 * float(perp @ perp)))
    assert float(g @ eps) == pytest.approx(0.2 * float(g.norm()))


def test_two_dtypes_are_decayed_once():
    """A loop over dtypes inside a loop over groups must not decay everything twice."""
    parameters = [nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in (torch.float32, torch.float64)]
    opt = lesam.SAM(torch.optim.SGD(parameters, lr=0.1, weight_decay=0.5), rho=0.1)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = sum(0.0 * p.double().sum() for p in parameters)
        loss.backward()
        return loss

    opt.step(closure)
    for p in parameters:
        torch.testing.assert_close(p.detach(), torch.full_like(p, 0.95))


@both_styles
def test_a_loss_of_exactly_zero_is_a_loss(style: str):
    model, other = network(), network()
    opt, reference = lesam.SAM(BASES["sgd"](model.parameters())), lesam.SAM(BASES["sgd"](other.parameters()))
    x, y = next(batches(1))
    floor = nn.functional.cross_entropy(model(x), y).detach()

    def closure() -> Tensor:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y) - floor
        loss.backward()
        return loss

    if style == "closure":
        assert float(opt.step(closure).detach()) == 0.0
        assert float(opt.last.loss) == 0.0
        assert float(opt.last.perturbed_loss) > 0.0
    else:
        with opt.clean():
            closure()
        with opt.perturbed():
            closure()
        opt.step()
    step_once(reference, other, (x, y))
    assert same_bits(bits(model.parameters()), bits(other.parameters()))


# ---------------------------------------------------------------------- one way to call, any base


@every_method
def test_one_loop_serves_every_method_and_returns_the_clean_loss(case: Case):
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    for x, y in batches(5):
        clean = nn.functional.cross_entropy(model(x), y).detach()
        one_pass_at_perturbed_weights = opt.passes == 1 and opt.steps > 0 and case.name != "looksam"
        loss = opt.step(closure_for(opt, model, x, y))
        assert isinstance(loss, Tensor)
        assert (float(loss.detach()) == float(clean)) != one_pass_at_perturbed_weights


def test_signatures_are_those_of_the_documentation():
    expected = {
        "sam": {"rho": 0.05},
        "asam": {"rho": 0.5, "eta": 0.01},
        "fishersam": {"rho": 0.1, "eta": 1.0},
        "eigensam": {"rho": 0.1, "alpha": 0.2, "every": 100, "iterations": 5, "form": "official"},
        "friendlysam": {"rho": 0.2, "weight": 1.0, "decay": 0.9},
        "gsam": {"rho": 0.05, "alpha": 0.4},
        "ssam": {"rho": 0.05},
        "esam": {"rho": 0.05, "beta": 0.6, "gamma": 0.5},
        "msam": {"rho": 3.0},
        "s2sam": {"rho": 0.05},
        "lesam": {"sigma": 0.35, "rho_max": 0.4, "varrho": 1e-12},
        "lesamplus": {"sigma": 0.15, "alpha": 0.5, "rho_max": 0.4, "varrho": 1e-12, "form": "paper"},
        "looksam": {"rho": 0.05, "alpha": 0.7, "every": 5},
        "vasso": {"rho": 0.05, "theta": 0.2},
        "wsam": {"rho": 0.05, "gamma": 0.9, "decoupled": True},
        "emasam": {"rho": 0.05, "decay": 0.999},
        "aesam": {"rho": 0.05, "threshold": 0.0, "decay": 0.9},
        "crsam": {"rho": 0.05, "alpha": 0.1, "beta": 0.01},
        "onepasslesam": {"sigma": 0.2, "theta": 0.2, "rho_max": 0.4, "varrho": 1e-12},
        "partiallesam": {"sigma": 0.35, "share": 0.1, "theta": 0.2, "weight": 3.0, "rho_max": 0.4, "varrho": 1e-12},
    }
    assert set(expected) == set(lesam.METHODS)
    for name, defaults in expected.items():
        parameters = inspect.signature(lesam.METHODS[name]).parameters
        assert next(iter(parameters)) == "base"
        assert {key: parameters[key].default for key in defaults} == defaults
        assert list(parameters)[1 : 1 + len(defaults)] == list(defaults)


ANY_BASE = {
    name: make
    for name, make in vars(torch.optim).items()
    if inspect.isclass(make)
    and issubclass(make, torch.optim.Optimizer)
    and make not in (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)
}
MATRICES_ONLY = {"Muon"}


@pytest.mark.parametrize("base_name", sorted(ANY_BASE))
@pytest.mark.parametrize("name", ["sam", "lesamplus", "gsam", "friendlysam"])
def test_any_optimizer_of_torch_can_be_the_base(base_name: str, name: str):
    """No class for each pair: the wrapper hands its gradient to the base, whatever that is."""
    make: Callable[..., torch.optim.Optimizer] = ANY_BASE[base_name]

    def net() -> nn.Module:
        if base_name not in MATRICES_ONLY:
            return network()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(5, 7, bias=False), nn.Tanh(), nn.Linear(7, 3, bias=False)).double()

    model, other = net(), net()
    opt, base = lesam.METHODS[name](make(model.parameters(), lr=0.01)), make(other.parameters(), lr=0.01)
    used: list[list[Tensor]] = []
    opt.base.register_step_pre_hook(lambda *_: used.append([p.grad.clone() for p in model.parameters()]))
    for batch in batches(4):
        step_once(opt, model, batch)
        for p, g in zip(other.parameters(), used[-1], strict=True):
            p.grad = g.clone()
        base.step()
    assert same_bits(bits(model.parameters()), bits(other.parameters()))


def test_every_public_name_is_exported():
    names = [
        "SAM",
        "ASAM",
        "FisherSAM",
        "EigenSAM",
        "FriendlySAM",
        "GSAM",
        "SSAM",
        "ESAM",
        "MSAM",
        "S2SAM",
        "LESAM",
        "LESAMPlus",
        "SharpnessAware",
        "Gradient",
        "Noise",
        "TopEigenvector",
        "Momentum",
        "Stale",
        "Euclidean",
        "Adaptive",
        "DiagonalFisher",
        "Fixed",
        "LossBudget",
        "perturbed",
        "gap",
        "renormalized",
        "excess",
        "RandomSubset",
        "TopSamples",
        "schedules",
        "METHODS",
    ]
    assert set(names) <= set(lesam.__all__)
    assert all(hasattr(lesam, name) for name in names)


# ---------------------------------------------------------------------- loss scaling


@every_method_in_contexts
def test_a_loss_scaler_changes_neither_radius_nor_step(case: Case):
    """Scaled gradients would turn a loss-equated radius into none at all, and mix wrongly with unscaled ones."""
    model, other = network(dtype=torch.float32), network(dtype=torch.float32)
    opt, plain = case.make(BASES["sgd"](model.parameters())), case.make(BASES["sgd"](other.parameters()))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for x, y in batches(4, dtype=torch.float32):  # before the first refresh
        if opt.passes == 2:
            with opt.clean(scaler):
                scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        with opt.perturbed(scaler):
            scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        scaler.step(opt)
        scaler.update()
        step_once(plain, other, (x, y))
        torch.testing.assert_close(opt.last.rho, plain.last.rho, rtol=1e-4, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(flat(model.parameters()), flat(other.parameters()), rtol=1e-4, atol=1e-5)
