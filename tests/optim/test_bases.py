"""Base optimizers: one or several, what they are given, and which are refused."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import lesam

from .cases import (
    ONE_OF_EACH,
    ONE_PASS,
    Case,
    batches,
    closure_for,
    every_base,
    every_form,
    every_method,
    flat,
    network,
    same,
    sgd,
    train,
    weights,
)
from .faults import both_styles, model_bits, same_bits, step_once

SHARED = network()


@pytest.fixture
def pytorch_optimizer() -> Any:
    """A peer that has what torch's own optimizers do not; absent beside the oldest torch."""
    return pytest.importorskip("pytorch_optimizer")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lesam.SAM(torch.optim.SGD), "instance"),
        (lambda: lesam.SAM(network().parameters()), "torch.optim.Optimizer"),
        (lambda: lesam.SAM(None), "None"),
        (lambda: lesam.SAM(torch.optim.LBFGS(network().parameters())), "LBFGS"),
        (lambda: lesam.SAM(lesam.LESAM(sgd())), "LESAM"),
        (lambda: lesam.SAM([]), "empty"),
        (lambda: lesam.SAM([sgd(), 3]), "3"),
        (lambda: lesam.SAM([sgd(SHARED), sgd(SHARED)]), "two bases"),
        (lambda: lesam.SAM([sgd(), torch.optim.LBFGS(network().parameters())]), "LBFGS"),
        (lambda: lesam.SAM(torch.optim.SparseAdam(network().parameters())), "dense"),
        (lambda: lesam.MSAM(torch.optim.SGD(network().parameters(), lr=0.1)), "momentum"),
        (lambda: lesam.MSAM(torch.optim.Adagrad(network().parameters())), "Adagrad"),
        (lambda: lesam.MSAM(torch.optim.RMSprop(network().parameters())), "momentum"),
        (
            lambda: lesam.MSAM(
                torch.optim.SGD(
                    [{"params": p, "momentum": 0.9 * i} for i, p in enumerate(network().parameters())], lr=1.0
                )
            ),
            "group 0",
        ),
    ],
)
def test_a_base_that_cannot_work_is_refused(make: Callable[[], Any], words: str):
    with pytest.raises(ValueError, match=words):
        make()


def test_msam_refuses_a_later_group_without_momentum():
    model = network()
    opt = lesam.MSAM(torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9))
    with pytest.raises(ValueError, match="momentum"):
        opt.add_param_group({"params": model[2].parameters(), "momentum": 0.0})


# ---------------------------------------------------------------------- keys that other packages put into groups


@pytest.mark.parametrize("key", ["rho", "sigma"])
def test_a_radius_in_a_group_of_the_base_is_refused(key: str):
    """Other packages read it there; here it would be ignored."""
    model = network()
    groups = [{"params": model[0].parameters(), key: 0.5}, {"params": model[2].parameters()}]
    with pytest.raises(ValueError, match=rf"group 0 of SGD.*{key}=0.5.*perturb="):
        lesam.LESAM(torch.optim.SGD(groups, lr=0.1))
    opt = lesam.LESAM(torch.optim.SGD(model[0].parameters(), lr=0.1))
    with pytest.raises(ValueError, match=rf"{key}=0.1"):
        opt.add_param_group({"params": model[2].parameters(), key: 0.1})
    assert len(opt.param_groups) == 1


def test_a_rho_of_the_base_itself_is_its_own_affair():
    model = network()
    opt = lesam.SAM(torch.optim.Adadelta(model.parameters(), rho=0.8), rho=0.1)
    train(opt, model, 2)
    assert opt.param_groups[0]["rho"] == 0.8


# ---------------------------------------------------------------------- maximize


def negated(opt: Any, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        opt.zero_grad()
        loss = -nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


@every_form
@every_base
def test_maximizing_the_negative_loss_is_minimizing_the_loss(case: Case, base_name: str):
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[base_name]
    options: dict[str, Any] = {"lr": 0.05} | ({"momentum": 0.9} if base_name == "sgd" else {})
    model, mirror = network(), network()
    opt = case.make(kind(model.parameters(), **options))
    other = case.make(kind(mirror.parameters(), **options, maximize=True))
    for x, y in batches(8):
        opt.step(closure_for(opt, model, x, y))
        other.step(negated(other, mirror, x, y))
    torch.testing.assert_close(flat(weights(mirror)), flat(weights(model)), rtol=1e-9, atol=1e-11)


def test_a_maximized_group_climbs_against_its_own_descent():
    """eps_i = -rho g_i / |g| where a group maximizes, one norm over both."""
    model, rho = network(), 0.3
    groups = [{"params": model[0].parameters(), "maximize": True}, {"params": model[2].parameters()}]
    opt = lesam.SAM(torch.optim.SGD(groups, lr=0.0), rho=rho)
    x, y = next(batches(1))
    before = weights(model)
    g = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    with opt.clean():
        nn.functional.cross_entropy(model(x), y).backward()
    with opt.perturbed():
        for w, p, one, sign in zip(before, model.parameters(), g, (-1, -1, 1, 1), strict=True):
            torch.testing.assert_close(p.detach() - w, sign * rho * one / flat(list(g)).norm())
        nn.functional.cross_entropy(model(x), y).backward()
    opt.step()


def test_maximize_as_an_attribute_of_the_base(pytorch_optimizer: Any):
    model, mirror = network(), network()
    opt = lesam.LESAM(pytorch_optimizer.Lion(model.parameters(), lr=0.01), sigma=0.1)
    other = lesam.LESAM(pytorch_optimizer.Lion(mirror.parameters(), lr=0.01, maximize=True), sigma=0.1)
    for x, y in batches(5):
        opt.step(closure_for(opt, model, x, y))
        other.step(negated(other, mirror, x, y))
    torch.testing.assert_close(flat(weights(mirror)), flat(weights(model)), rtol=1e-9, atol=1e-11)


# ---------------------------------------------------------------------- several bases


def muon_and_adamw(model: nn.Module) -> list[torch.optim.Optimizer]:
    """The ordinary pairing of today: Muon for matrices, AdamW for the rest."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    muon = getattr(torch.optim, "Muon", partial(torch.optim.SGD, momentum=0.95, nesterov=True))  # from torch 2.9 on
    return [muon(matrices, lr=0.02), torch.optim.AdamW([p for p in model.parameters() if p.ndim < 2], lr=0.02)]


class OneAfterAnother(torch.optim.Optimizer):
    """Two optimizers as one, long-hand: what several bases must equal."""

    def __init__(self, bases: list[torch.optim.Optimizer]) -> None:
        self.parts = bases
        super().__init__([p for base in bases for group in base.param_groups for p in group["params"]], {})

    def step(self, closure: Any = None) -> None:
        for base in self.parts:
            base.step()


@pytest.mark.parametrize("case", [case for case in ONE_OF_EACH if case.name != "msam"], ids=str)
@both_styles
def test_several_bases_have_one_norm_and_one_perturbation(case: Case, style: str):
    """Equal to the same two optimizers joined by hand, in the order of the bases."""
    if case.name == "wsam":
        case = Case("wsam", {**case.options, "decoupled": False})  # there is no learning rate of the two joined
    model, twin = network(), network()
    opt = case.make(muon_and_adamw(model))
    joined = OneAfterAnother(muon_and_adamw(twin))
    reference = case.make(joined)
    for batch in batches(6):
        step_once(opt, model, batch, style)
        step_once(reference, twin, batch, style)
        assert float(opt.last.grad_norm) == float(reference.last.grad_norm) or case.name in (
            "esam",
            "looksam",
            *ONE_PASS,
        )
    torch.testing.assert_close(flat(weights(model)), flat(weights(twin)), rtol=1e-9, atol=1e-11)


def test_msam_takes_the_momentum_of_each_base():
    model = network()
    opt = lesam.MSAM(muon_and_adamw(model), rho=0.4)
    data = list(batches(2))
    step_once(opt, model, data[0])
    before = weights(model)
    muon, adamw = (base.state for base in opt.bases)
    buffers = [muon[p]["momentum_buffer"] if p.ndim == 2 else adamw[p]["exp_avg"] for p in model.parameters()]
    length = flat(buffers).norm()
    with opt.perturbed():
        for w, p, v in zip(before, model.parameters(), buffers, strict=True):
            torch.testing.assert_close(p.detach() - w, -0.4 * v / length)
        nn.functional.cross_entropy(model(data[1][0]), data[1][1]).backward()
    opt.step()


def test_the_groups_of_several_bases_are_the_same_objects():
    model = network()
    bases = muon_and_adamw(model)
    opt = lesam.LESAM(bases)
    assert opt.bases == tuple(bases)
    assert [id(group) for group in opt.param_groups] == [id(group) for base in bases for group in base.param_groups]
    with pytest.raises(AttributeError, match=r"opt\.bases"):
        _ = opt.base
    with pytest.raises(ValueError, match=r"bases\[1\] \(AdamW\)"):
        opt.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    assert type(bases[0]).__name__ in repr(opt)
    assert "AdamW" in repr(opt)


def test_a_group_added_to_one_of_several_bases_takes_part():
    model = network()
    first, second = model[0], model[2]
    opt = lesam.SAM([sgd(first), torch.optim.AdamW([second.weight])], rho=0.1)
    x, y = next(batches(1))
    opt.step(closure_for(opt, model, x, y))
    opt.bases[1].add_param_group({"params": [second.bias]})
    assert opt.steps == 1
    before = second.bias.detach().clone()
    opt.step(closure_for(opt, model, x, y))
    assert not torch.equal(before, second.bias)
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert expected.numel() == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("case", [case for case in ONE_OF_EACH if case.name != "msam"], ids=str)
def test_several_bases_resume_bit_for_bit_from_one_standard_state_dict(case: Case):
    data = list(batches(8))
    model = network()
    opt = case.make(muon_and_adamw(model))
    for x, y in data[:4]:
        opt.step(closure_for(opt, model, x, y))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    assert set(saved["opt"]) == {"state", "param_groups"}
    assert [group["params"] for group in saved["opt"]["param_groups"]] == [[0, 1], [2, 3]]
    assert {"momentum_buffer"} <= set(saved["opt"]["state"][0])
    assert {"exp_avg", "exp_avg_sq"} <= set(saved["opt"]["state"][2])
    again = network(seed=5)
    resumed = case.make(muon_and_adamw(again))
    again.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["opt"])
    assert resumed.steps == 4
    for x, y in data[4:]:
        opt.step(closure_for(opt, model, x, y))
        resumed.step(closure_for(resumed, again, x, y))
    assert same_bits(model_bits(model), model_bits(again))


def test_several_bases_refuse_a_state_dict_of_another_number_of_groups():
    model = network()
    opt = lesam.SAM(muon_and_adamw(model))
    with pytest.raises(ValueError, match=r"1 parameter groups.* 2"):
        opt.load_state_dict(lesam.SAM(sgd(model)).state_dict())


def test_foreign_entries_of_several_bases_are_kept_apart(pytorch_optimizer: Any):
    """MADGRAD counts its steps under state["k"], and so does the other one."""
    data = list(batches(6))

    def build(model: nn.Module) -> lesam.SharpnessAware:
        halves = (model[0].parameters(), model[2].parameters())
        return lesam.LESAM([pytorch_optimizer.MADGRAD(half, lr=0.01) for half in halves], sigma=0.1)

    model = network()
    opt = build(model)
    for x, y in data[:3]:
        opt.step(closure_for(opt, model, x, y))
    saved = copy.deepcopy((model.state_dict(), opt.state_dict()))
    again = network(seed=3)
    resumed = build(again)
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    for x, y in data[3:]:
        opt.step(closure_for(opt, model, x, y))
        resumed.step(closure_for(resumed, again, x, y))
    assert same_bits(model_bits(model), model_bits(again))


@pytest.mark.parametrize("which", ["wrapper", "first", "second"])
def test_schedulers_on_any_of_several_bases(which: str):
    model = network()
    opt = lesam.LESAM(muon_and_adamw(model))
    target = {"wrapper": opt, "first": opt.bases[0], "second": opt.bases[1]}[which]
    scheduler = torch.optim.lr_scheduler.ExponentialLR(target, gamma=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "lr_scheduler.step() before optimizer.step()"
        for x, y in batches(2):
            opt.step(closure_for(opt, model, x, y))
            scheduler.step()
    lrs = [group["lr"] / 0.02 for group in opt.param_groups]
    assert lrs == {"wrapper": [0.25, 0.25], "first": [0.25, 1.0], "second": [1.0, 0.25]}[which]


def test_several_bases_under_a_loss_scaler():
    """The scale drops out, and an overflow skips all of them."""
    ends = []
    for scale in (1.0, 1024.0):
        model = network(dtype=torch.float32)
        opt = lesam.LESAMPlus(muon_and_adamw(model), sigma=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)
        for step, (x, y) in enumerate(batches(4, dtype=torch.float32)):
            before = model_bits(model)
            for around in (opt.clean, opt.perturbed):
                with around(scaler):
                    loss = nn.functional.cross_entropy(model(x), y)
                    scaler.scale(loss * (float("inf") if step == 2 and scale > 1 else 1.0)).backward()
            scaler.step(opt)
            scaler.update()
            if step == 2 and scale > 1:
                assert same_bits(before, model_bits(model))
                assert opt.steps == 2
                break
            if step == 1:
                ends.append(flat(weights(model)))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- what a base is given


class Polyak(torch.optim.Optimizer):
    """w <- w - (loss / |g|^2) g: a step size from the loss (Polyak, 1987), with f* = 0."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> Any:
        loss = closure()
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        square = sum(p.grad.square().sum() for p in parameters)
        for p in parameters:
            p.sub_(loss / square * p.grad)
        return loss


@pytest.mark.parametrize("calls", ["one", "micro-batches"])
def test_a_base_that_wants_the_loss_gets_the_clean_one(calls: str):
    model, twin = network(), network()
    opt = lesam.SAM(Polyak(model.parameters()), rho=0.1)
    for x, y in batches(3):
        parameters = list(twin.parameters())
        loss = nn.functional.cross_entropy(twin(x), y)
        g = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, one in zip(parameters, g, strict=True):
                p.add_(one, alpha=float(0.1 / flat(list(g)).norm()))
        g_hat = torch.autograd.grad(nn.functional.cross_entropy(twin(x), y), parameters)
        with torch.no_grad():
            for p, one, up in zip(parameters, g, g_hat, strict=True):
                p.sub_(one, alpha=float(0.1 / flat(list(g)).norm()))
                p.sub_(up, alpha=float(loss / flat(list(g_hat)).square().sum()))
        parts = [(x, y)] if calls == "one" else list(zip(x.chunk(2), y.chunk(2), strict=True))
        opt.step([closure_for(opt, model, a, b) for a, b in parts])
    torch.testing.assert_close(flat(weights(model)), flat(weights(twin)), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("peer", [False, True])
def test_a_base_that_wants_the_loss_is_refused_where_there_is_none(peer: bool, request: pytest.FixtureRequest):
    model = network()
    parameters = model.parameters()
    base = request.getfixturevalue("pytorch_optimizer").AliG(parameters, max_lr=0.1) if peer else Polyak(parameters)
    opt = lesam.SAM(base)
    before = model_bits(model)
    with pytest.raises(RuntimeError, match=r"wants the loss.*opt\.step\(closure\)"):
        step_once(opt, model, next(batches(1)), "contexts")
    assert same_bits(before, model_bits(model))
    step_once(opt, model, next(batches(1)))


class LineSearch(torch.optim.SGD):
    """Evaluates the loss at other weights, which a base cannot."""

    def step(self, closure: Any = None) -> Any:
        super().step()
        return closure()


def test_a_base_that_evaluates_elsewhere_is_refused_by_name():
    model = network()
    opt = lesam.SAM(LineSearch(model.parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match="LineSearch calls its closure"):
        step_once(opt, model, next(batches(1)))


@both_styles
def test_global_optimizer_hooks_fire_once_a_step_with_the_wrapper(style: str):
    model = network()
    opt = lesam.LESAM(sgd(model))
    seen: list[Any] = []
    handles = [
        register_optimizer_step_pre_hook(lambda o, *_: seen.append(("before", o))),
        register_optimizer_step_post_hook(lambda o, *_: seen.append(("after", o))),
        opt.base.register_step_post_hook(lambda o, *_: seen.append(("own", o))),
    ]
    try:
        step_once(opt, model, next(batches(1)), style)
    finally:
        for handle in handles:
            handle.remove()
    assert [(when, type(o).__name__) for when, o in seen] == [("before", "LESAM"), ("own", "SGD"), ("after", "LESAM")]


@every_method
def test_groups_with_learning_rate_zero_are_perturbed_and_counted(case: Case):
    """A learning rate is the base's affair: a warm-up from 0 does not change what is climbed."""
    model = network()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]
    opt = case.make(torch.optim.SGD(groups, lr=0.1, momentum=0.9))
    frozen = [p.detach().clone() for p in model[0].parameters()]
    data = list(batches(3))
    for batch in data:
        step_once(opt, model, batch)
    assert all(torch.equal(a, b) for a, b in zip(frozen, model[0].parameters(), strict=True))
    if opt.passes == 2 and case.name != "esam":
        twin = network()
        twin.load_state_dict(model.state_dict())
        x, y = data[0]
        g = torch.autograd.grad(nn.functional.cross_entropy(twin(x), y), list(twin.parameters()))
        opt.step(closure_for(opt, model, x, y))
        torch.testing.assert_close(opt.last.grad_norm, flat(list(g)).norm())


# ---------------------------------------------------------------------- MSAM's buffer


def test_msam_says_which_buffers_there_are_once_a_step_has_been_taken(pytorch_optimizer: Any):
    model = network()
    opt = lesam.MSAM(pytorch_optimizer.SGDP(model.parameters(), lr=0.1, momentum=0.9), rho=0.5)
    data = list(batches(3))
    step_once(opt, model, data[0])  # no buffer yet: nothing is perturbed
    before = model_bits(model)
    with pytest.raises(RuntimeError, match=r'SGDP.*momentum_buffer or exp_avg.*momentum="momentum"'):
        step_once(opt, model, data[1])
    assert same_bits(before, model_bits(model))


def test_msam_takes_a_buffer_by_name(pytorch_optimizer: Any):
    model = network()
    opt = lesam.MSAM(pytorch_optimizer.SGDP(model.parameters(), lr=0.1, momentum=0.9), rho=0.5, momentum="momentum")
    data = list(batches(2))
    step_once(opt, model, data[0])
    before = weights(model)
    buffers = [opt.base.state[p]["momentum"].clone() for p in model.parameters()]
    with opt.perturbed():
        for w, p, v in zip(before, model.parameters(), buffers, strict=True):
            torch.testing.assert_close(p.detach() - w, -0.5 * v / flat(buffers).norm())
        nn.functional.cross_entropy(model(data[1][0]), data[1][1]).backward()
    opt.step()


@pytest.mark.parametrize("name", ["AliG", "AccSGD"])
def test_msam_refuses_buffers_that_mean_something_else(name: str, pytorch_optimizer: Any):
    with pytest.raises(ValueError, match=f"{name}'s momentum_buffer"):
        lesam.MSAM(getattr(pytorch_optimizer, name)(network().parameters()))


# ---------------------------------------------------------------------- schedule-free bases


def test_train_and_eval_exist_exactly_where_a_base_has_them(pytorch_optimizer: Any):
    opt = lesam.LESAM(sgd())
    assert not hasattr(opt, "train")
    assert not hasattr(opt, "eval")
    model = network()
    free = pytorch_optimizer.ScheduleFreeSGD(model[0].parameters(), lr=0.1)
    opt = lesam.LESAM([free, torch.optim.AdamW(model[2].parameters())])
    assert callable(opt.train)
    assert callable(opt.eval)


def test_train_and_eval_reach_the_base(pytorch_optimizer: Any):
    """eval() moves to the averaged weights, train() back: as with the bare base."""
    model, twin = network(), network()
    opt = lesam.SAM(pytorch_optimizer.ScheduleFreeSGD(model.parameters(), lr=0.1), when=lambda step: False)
    bare = pytorch_optimizer.ScheduleFreeSGD(twin.parameters(), lr=0.1)
    opt.train()
    bare.train()
    for x, y in batches(5):
        opt.step(closure_for(opt, model, x, y))
        bare.step(closure_for(bare, twin, x, y))
    trained = weights(model)
    opt.eval()
    bare.eval()
    assert not same(trained, weights(model))
    assert same(weights(twin), weights(model))
    opt.train()
    bare.train()
    assert same(weights(twin), weights(model))
    with opt.clean():
        nn.functional.cross_entropy(model(x), y).backward()
    with opt.perturbed():
        nn.functional.cross_entropy(model(x), y).backward()
        with pytest.raises(RuntimeError, match=r"eval\(\) was called inside perturbed"):
            opt.eval()


# ---------------------------------------------------------------------- two wrappers over one forward


@pytest.mark.parametrize("style", ["contexts", "closures"])
def test_two_wrappers_in_passes_of_one_backward_are_refused(style: str):
    """Each would perturb by its own norm, and spend the whole budget."""
    model = network()
    a, b = lesam.LESAM(sgd(model[0])), lesam.LESAM(sgd(model[2]))
    x, y = next(batches(1))
    before = model_bits(model)

    def closure() -> Tensor:
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    def nested() -> None:
        if style == "closures":
            a.step(lambda: b.step(closure))
        else:
            with a.clean(), b.clean():
                closure()

    with pytest.raises(RuntimeError, match=r"lesam\.LESAM\(\[muon, adamw\]\)"):
        nested()
    assert same_bits(before, model_bits(model))
    for opt in (a, b):
        opt.zero_grad()
        opt.step(closure)


def test_a_step_of_another_model_inside_a_pass_is_allowed():
    """An inner loop: two optimizers, two forwards."""
    outer, inner = network(), network(seed=1)
    a, b = lesam.LESAM(sgd(outer)), lesam.LESAM(sgd(inner))
    x, y = next(batches(1))

    def closure() -> Tensor:
        b.step(closure_for(b, inner, x, y))
        return closure_for(a, outer, x, y)()

    a.step(closure)
    assert a.steps == 1
    assert b.steps == 2
