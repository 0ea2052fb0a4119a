"""Weights come back bit for bit, and a step that fails has never been."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import lesam

from .cases import (
    BASES,
    CLOSURES_ONLY,
    ONE_OF_EACH,
    Case,
    batches,
    climbing,
    every_base,
    every_form,
    every_method,
    every_method_in_contexts,
    network,
)
from .faults import (
    Fault,
    assert_same_state,
    batch_norm_network,
    bits,
    both_styles,
    model_bits,
    passes_of,
    same_bits,
    step_once,
)

LOW = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def still_sgd(params) -> torch.optim.SGD:
    """Builds momentum and moves nothing."""
    return torch.optim.SGD(params, lr=0.0, momentum=0.9)


# ---------------------------------------------------------------------- a step that fails has never been


FAULTS = [
    ("first", RuntimeError, True),
    ("first", KeyboardInterrupt, False),
    ("second", RuntimeError, False),
    ("second", KeyboardInterrupt, True),
]
FAULTS_OF_A_REFRESH = [("refresh", RuntimeError, True), ("refresh", KeyboardInterrupt, False)]
EVERY_FAULT = [
    pytest.param(case, Fault(error, after_backward=late), place, id=f"{case}-{place}-{error.__name__}")
    for case in ONE_OF_EACH
    for place, error, late in FAULTS + (FAULTS_OF_A_REFRESH if case.name == "eigensam" else [])
]


@pytest.mark.parametrize(("case", "fault", "place"), EVERY_FAULT)
@every_base
@both_styles
def test_a_failed_step_leaves_nothing(case: Case, fault: Fault, place: str, base_name: str, style: str):
    """Weights, BatchNorm statistics, counters, schedules and memory continue as if the error had not been."""
    smooth, bumpy = batch_norm_network(), batch_norm_network()
    case = climbing(case)
    smooth_opt = case.make(BASES[base_name](smooth.parameters()), model=smooth)
    opt = case.make(BASES[base_name](bumpy.parameters()), model=bumpy)
    for step, batch in enumerate(batches(7)):
        refresh = True
        if step == 4:
            before, last = model_bits(bumpy), opt.last
            with pytest.raises(fault.error, match="on purpose"):
                step_once(opt, bumpy, batch, style, replace(fault, call=passes_of(opt)[place]))
            assert same_bits(before, model_bits(bumpy))
            assert opt.steps == 4
            assert opt.last is last
            # in context style the refresh is a call of its own, which had succeeded
            refresh = style == "closure" or place == "refresh"
        step_once(smooth_opt, smooth, batch, style)
        step_once(opt, bumpy, batch, style, refresh=refresh)
    assert same_bits(model_bits(smooth), model_bits(bumpy))
    assert_same_state(smooth_opt.state_dict(), opt.state_dict())


@every_method
@both_styles
def test_a_base_step_that_fails_takes_the_whole_step_with_it(case: Case, style: str):
    smooth, bumpy = batch_norm_network(), batch_norm_network()
    smooth_opt = case.make(BASES["sgd"](smooth.parameters()), model=smooth)
    opt = case.make(BASES["sgd"](bumpy.parameters()), model=bumpy)
    for step, batch in enumerate(batches(5)):
        if step == 2:

            def refuse(*_):
                raise RuntimeError("on purpose")

            handle = opt.base.register_step_pre_hook(refuse)
            before = model_bits(bumpy)
            with pytest.raises(RuntimeError, match="on purpose"):
                step_once(opt, bumpy, batch, style)
            handle.remove()
            assert same_bits(before, model_bits(bumpy))
        step_once(smooth_opt, smooth, batch, style)
        step_once(opt, bumpy, batch, style)
    assert same_bits(model_bits(smooth), model_bits(bumpy))
    assert_same_state(smooth_opt.state_dict(), opt.state_dict())


@both_styles
@pytest.mark.parametrize("option", ["rho", "alpha"])
def test_a_schedule_that_fails_once_leaves_nothing(style: str, option: str):
    """Whether it is read before, in or after the climb."""
    bad = [False]

    def sometimes(_: int) -> float:
        return float("nan") if bad[0] else 0.3

    model, other = batch_norm_network(), batch_norm_network()
    options = {"rho_max" if option == "rho" else "alpha": sometimes}
    opt = lesam.LESAMPlus(BASES["sgd"](model.parameters()), model=model, **options)
    smooth = lesam.LESAMPlus(BASES["sgd"](other.parameters()), model=other, **{k: (lambda _: 0.3) for k in options})
    for step, batch in enumerate(batches(3)):
        if step == 1:
            bad[0], before = True, model_bits(model)
            with pytest.raises(ValueError, match="nan"):
                step_once(opt, model, batch, style)
            bad[0] = False
            assert same_bits(before, model_bits(model))
        step_once(opt, model, batch, style)
        step_once(smooth, other, batch, style)
    assert same_bits(model_bits(model), model_bits(other))


@every_method_in_contexts
@both_styles
def test_a_prepared_step_that_is_dropped_leaves_nothing(case: Case, style: str):
    """``zero_grad()`` after the passes drops the step; memory and statistics are those before it."""
    smooth, model = batch_norm_network(), batch_norm_network()
    smooth_opt = case.make(BASES["sgd"](smooth.parameters()), model=smooth)
    opt = case.make(BASES["sgd"](model.parameters()), model=model)
    for step, (x, y) in enumerate(batches(4)):
        if step == 2:
            before = model_bits(model)
            if opt.passes == 2:
                with opt.clean():
                    nn.functional.cross_entropy(model(x), y).backward()
            with opt.perturbed():
                nn.functional.cross_entropy(model(x), y).backward()
            opt.zero_grad()
            assert same_bits(before, model_bits(model))
        step_once(smooth_opt, smooth, (x, y), style)
        step_once(opt, model, (x, y), style)
    assert same_bits(model_bits(smooth), model_bits(model))
    assert_same_state(smooth_opt.state_dict(), opt.state_dict())


# ---------------------------------------------------------------------- kinds of parameters


class MixedPrecision(nn.Module):
    """Layers of four dtypes, one of them shared, one frozen, in three groups."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.layers = nn.ModuleList(nn.Linear(5, 5).to(dtype) for dtype in LOW)
            self.frozen = nn.Linear(5, 5).to(torch.bfloat16).requires_grad_(False)
            self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (*self.layers, self.frozen, self.layers[0]):
            x = torch.tanh(layer(x.to(layer.weight.dtype)))
        return self.head(x.float())

    def groups(self) -> list[dict]:
        return [
            {"params": [*self.layers[0].parameters(), *self.layers[3].parameters()]},
            {"params": [*self.frozen.parameters(), *self.layers[1].parameters()], "weight_decay": 0.1},
            {"params": [*self.layers[2].parameters(), *self.head.parameters()], "momentum": 0.5},
        ]


@every_method
@both_styles
def test_every_dtype_and_group_comes_back(case: Case, style: str):
    """At learning rate 0 nothing may move, though the passes saw moved weights of every dtype."""
    if case.name == "emasam":
        pytest.skip("weights that stay where they are do not drift from their average, and are not perturbed")
    model = MixedPrecision()
    opt = case.make(still_sgd(model.groups()))
    start = model_bits(model)
    moved = [False] * len(start)

    def look(*_) -> None:
        for index, (now, then) in enumerate(zip(model_bits(model), start, strict=True)):
            moved[index] |= not torch.equal(now, then)

    model.register_forward_pre_hook(look)
    for batch in batches(6, dtype=torch.float32):
        step_once(opt, model, batch, style)
        assert same_bits(start, model_bits(model))
    names = list(model.state_dict())
    assert all(did != name.startswith("frozen") for did, name in zip(moved, names, strict=True)), dict(
        zip(names, moved, strict=True)
    )
    assert not any(p.requires_grad for p in model.frozen.parameters())
    assert all(p.grad is None for p in model.frozen.parameters())
    assert all(p.requires_grad for layer in (*model.layers, model.head) for p in layer.parameters())


@every_method
@both_styles
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_low_precision_comes_back_after_an_error_far_from_home(case: Case, style: str, dtype: torch.dtype):
    """Adding and subtracting again would round; here the perturbation dwarfs the weights."""
    options = {key: 64.0 for key in ("rho", "sigma", "rho_max") if key in case.options}
    model = network(dtype=dtype)
    opt = case.make(still_sgd(model.parameters()), **options)
    start = model_bits(model)
    for step, batch in enumerate(batches(3, dtype=dtype)):
        if step < 2:
            step_once(opt, model, batch, style)
        else:
            with pytest.raises(KeyboardInterrupt):
                step_once(opt, model, batch, style, Fault(KeyboardInterrupt, call=passes_of(opt)["second"]))
        assert same_bits(start, model_bits(model))


def test_negative_zeros_and_tiny_numbers_come_back():
    w = nn.Parameter(torch.tensor([-0.0, 0.0, 1e-310, -5e-324, 1e300], dtype=torch.float64))
    start = bits([w])
    opt = lesam.SAM(still_sgd([w]), rho=1.0)
    (w * torch.arange(1.0, 6.0)).sum().backward()
    with opt.perturbed():
        assert not same_bits(start, bits([w]))
        (w * w).sum().backward()
    assert same_bits(start, bits([w]))


# ---------------------------------------------------------------------- gradients in one pass only


class Branches(nn.Module):
    """A trunk and two branches, each of which can be left out, as in stochastic depth."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.trunk, self.a, self.b = (nn.Linear(5, 3).double() for _ in range(3))
        self.use = "ab"

    def forward(self, x: Tensor) -> Tensor:
        out = self.trunk(x)
        for name in self.use:
            out = out + torch.tanh(getattr(self, name)(x))
        return out


@every_form
@both_styles
def test_gradients_in_one_pass_only(case: Case, style: str):
    """Branch a is used in pass one only and b in pass two only: a and b come back, and b is trained."""
    if case.name in CLOSURES_ONLY:
        pytest.skip("three passes, tests/optim/test_mirror.py")
    model = Branches()
    opt = climbing(case).make(BASES["sgd"](model.parameters()))
    for batch in batches(5):  # momentum, averages, an eigenvector
        step_once(opt, model, batch, style)
    x, y = next(batches(1, seed=9))
    before = bits(model.parameters())
    uses = iter("ab" if opt.passes == 2 else "b")
    inside: list[list[Tensor]] = []

    def run_pass() -> Tensor:
        model.use = next(uses)
        inside.append(bits(model.parameters()))
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    if opt.passes == 2:
        with opt.clean():
            run_pass()
    with opt.perturbed():
        run_pass()
    assert not same_bits(before, inside[-1])
    assert same_bits(before, bits(model.parameters()))
    weight_b = model.b.weight.detach().clone()
    opt.step()
    assert not torch.equal(model.b.weight, weight_b)
    model.use = "ab"
    for batch in batches(2, seed=4):  # and the next ones are normal
        step_once(opt, model, batch, style)
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("form", ["paper", "reference"])
def test_mixed_gradient_where_only_one_pass_saw_it(form: str):
    """a g_hat + b g with the missing one zero."""
    alpha, model = 0.5, Branches()
    opt = lesam.LESAMPlus(torch.optim.SGD(model.parameters(), lr=1.0), sigma=0.05, alpha=alpha, form=form)
    x, y = next(batches(1))
    model.use = "a"
    with opt.clean():
        nn.functional.cross_entropy(model(x), y).backward()
    g = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    model.use = "b"
    with opt.perturbed():
        loss = nn.functional.cross_entropy(model(x), y)
        trained = [p for n, p in model.named_parameters() if not n.startswith("a.")]
        names = [n for n, _ in model.named_parameters() if not n.startswith("a.")]
        g_hat = dict(zip(names, torch.autograd.grad(loss, trained, retain_graph=True), strict=True))
        loss.backward()
    a = 1 + alpha if form == "paper" else 1.0
    for name, p in model.named_parameters():
        expected = a * g_hat.get(name, torch.zeros_like(p)) - alpha * (0.0 if g[name] is None else g[name])
        torch.testing.assert_close(p.grad, expected, rtol=1e-12, atol=1e-14, msg=lambda m, name=name: f"{name}: {m}")


@every_method
@both_styles
def test_tied_weights_are_perturbed_once(case: Case, style: str):
    """One tensor under two names equals the same sum written with one name."""

    class Tied(nn.Module):
        def __init__(self, twice: bool) -> None:
            super().__init__()
            with torch.random.fork_rng():
                torch.manual_seed(2)
                self.first, self.last = nn.Linear(5, 5).double(), nn.Linear(5, 3).double()
            if twice:
                self.again = self.first

        def forward(self, x: Tensor) -> Tensor:
            again = self.again if hasattr(self, "again") else self.first
            return self.last(torch.tanh(again(torch.tanh(self.first(x)))))

    ends = []
    for twice in (True, False):
        model = Tied(twice)
        opt = case.make(BASES["sgd"](model.parameters()))
        for batch in batches(6):
            before = bits(model.parameters())
            step_once(opt, model, batch, style)
            assert not same_bits(before, bits(model.parameters()))
        ends.append(bits(model.parameters()))
    assert same_bits(*ends)


# ---------------------------------------------------------------------- who is perturbed


@every_method
@both_styles
def test_only_chosen_parameters_are_perturbed_and_all_are_trained(case: Case, style: str):
    model = network()
    chosen = list(model[0].parameters())
    opt = climbing(case).make(BASES["sgd"](model.parameters()), perturb=chosen)
    seen: list[list[Tensor]] = []
    model.register_forward_pre_hook(lambda *_: seen.append(bits(model.parameters())))
    for batch in batches(6):
        before = bits(model.parameters())
        seen.clear()
        step_once(opt, model, batch, style)
        assert all(torch.equal(b, s) for now in seen for b, s in zip(before[2:], now[2:], strict=True))
        assert all(not torch.equal(b, n) for b, n in zip(before, bits(model.parameters()), strict=True))
    assert not same_bits(before[:2], seen[-1][:2])


def test_a_parameter_named_twice_in_perturb_is_perturbed_once():
    """As when two modules that share a weight are listed one after the other."""
    ends = []
    for times in (1, 2):
        model = network()
        opt = lesam.SAM(BASES["sgd"](model.parameters()), rho=0.3, perturb=times * list(model.parameters()))
        for batch in batches(3):
            step_once(opt, model, batch)
        ends.append(bits(model.parameters()))
    assert same_bits(*ends)


@both_styles
def test_a_layer_frozen_between_steps_stays_where_it_is(style: str):
    """Its last gradient may still be there, and is not applied again and again."""
    model = network()
    opt = lesam.SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.1)
    for batch in batches(2):
        step_once(opt, model, batch, style)
    model[0].requires_grad_(False)
    before = bits(model[0].parameters())
    for batch in batches(3, seed=2):
        step_once(opt, model, batch, style)
    assert same_bits(before, bits(model[0].parameters()))
    model[0].requires_grad_(True)
    step_once(opt, model, batch, style)
    assert not same_bits(before, bits(model[0].parameters()))


# ---------------------------------------------------------------------- memory layouts


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.conv, self.last = nn.Conv2d(3, 4, 3).double(), nn.Linear(4, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        images = x[:, :3, None, None] * torch.linspace(-1, 1, 25, dtype=x.dtype).reshape(1, 1, 5, 5)
        return self.last(torch.tanh(self.conv(images)).mean((2, 3)))


@every_method
@pytest.mark.parametrize("layout", ["weights", "gradients", "both"])
@pytest.mark.filterwarnings("ignore:grad and param do not obey")
def test_memory_layout_changes_no_number(case: Case, layout: str):
    """channels_last weights, gradients laid out unlike their weights: the numbers of plain ones."""
    ends = []
    for changed in (False, True):
        model = Convolutional()
        if changed and layout != "gradients":
            model.to(memory_format=torch.channels_last)
        opt = case.make(BASES["sgd"](model.parameters()))
        weight = model.conv.weight

        other = torch.contiguous_format if layout == "both" else torch.channels_last
        foreign = torch.empty_like(weight, memory_format=other) if changed and layout != "weights" else None

        def closure(x: Tensor, y: Tensor, model=model, opt=opt, weight=weight, foreign=foreign) -> Tensor:
            opt.zero_grad()
            if weight.grad is None and foreign is not None:
                weight.grad = torch.zeros_like(foreign)  # which the backward adds to, as it lies
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            if foreign is not None:
                assert weight.grad.stride() != weight.stride()
            return loss

        strides = weight.stride()
        for x, y in batches(6):
            opt.step(partial(closure, x, y))
        assert weight.stride() == strides
        ends.append([p.detach().clone() for p in model.parameters()])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@every_method
@both_styles
def test_a_parameter_with_gaps_in_memory(case: Case, style: str):
    """A parameter that is every other column of a larger tensor: same numbers, and the columns between stay."""
    ends, storages = [], []
    for gaps in (False, True):
        model = network()
        whole = torch.full((7, 10), 7.0, dtype=torch.float64)
        if gaps:
            whole[:, ::2] = model[0].weight.detach()
            model[0].weight = nn.Parameter(whole[:, ::2])
            assert not model[0].weight.is_contiguous()
        opt = case.make(BASES["sgd"](model.parameters()))
        for batch in batches(6):
            step_once(opt, model, batch, style)
        ends.append([p.detach().clone() for p in model.parameters()])
        storages.append(whole)
    assert (storages[1][:, 1::2] == 7.0).all()
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@every_method
@both_styles
def test_scalars_and_empty_tensors_are_parameters_too(case: Case, style: str):
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
            self.nothing = nn.Parameter(torch.empty(0, 3, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * self.net(x) + self.nothing.sum()

    model = Odd()
    opt = case.make(BASES["sgd"](model.parameters()))
    for batch in batches(6):
        step_once(opt, model, batch, style)
    assert float(model.scale.detach()) != 1.5
    assert torch.isfinite(model.scale)


@every_method
@both_styles
def test_weights_keep_their_storage(case: Case, style: str):
    """Flat buffers, graphs and views made before training stay views."""
    model = network()
    addresses = [p.data_ptr() for p in model.parameters()]
    view = model[0].weight.detach().view(-1)
    opt = case.make(BASES["sgd"](model.parameters()))
    for batch in batches(3):
        step_once(opt, model, batch, style)
    assert [p.data_ptr() for p in model.parameters()] == addresses
    assert torch.equal(view, model[0].weight.detach().view(-1))
