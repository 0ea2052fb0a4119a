"""Bad values, bad pairings, calls out of order: a sentence that names the mistake, and nothing left behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lesam

from .cases import BASES, ONE_OF_EACH, Case, batches, every_base, every_method, network
from .faults import bits, both_styles, model_bits, same_bits, step_once

NAN, INF = float("nan"), float("inf")


def sgd(model: nn.Module | None = None) -> torch.optim.SGD:
    return torch.optim.SGD((model or network()).parameters(), lr=0.05, momentum=0.9)


# ---------------------------------------------------------------------- hyper-parameters

NO_NUMBERS = [-0.1, NAN, INF, -INF, True, "0.1", [0.1], 1j]
NO_COUNTS = [0, -1, 2.5, True, "5", None]
NO_SHARES = [*NO_NUMBERS, None, 0.0, 1.5]

BAD: dict[str, dict[str, list[Any]]] = {
    "sam": {"rho": [*NO_NUMBERS, None]},
    "asam": {"rho": [*NO_NUMBERS, None], "eta": [*NO_NUMBERS, None, lambda step: 0.1]},
    "fishersam": {"rho": [*NO_NUMBERS, None], "eta": [*NO_NUMBERS, None]},
    "eigensam": {
        "rho": [*NO_NUMBERS, None],
        "alpha": [*NO_NUMBERS, None],
        "every": NO_COUNTS,
        "iterations": NO_COUNTS,
        "form": ["paper", None, 1],
    },
    "friendlysam": {
        "rho": [*NO_NUMBERS, None],
        "weight": [*NO_NUMBERS, None],
        "decay": [*NO_NUMBERS, None, 1.5],
    },
    "gsam": {"rho": [*NO_NUMBERS, None], "alpha": [*NO_NUMBERS, None]},
    "ssam": {"rho": [*NO_NUMBERS, None]},
    "esam": {"rho": [*NO_NUMBERS, None], "beta": NO_SHARES, "gamma": NO_SHARES, "seed": ["x", 1.5, None]},
    "msam": {"rho": [*NO_NUMBERS, None]},
    "s2sam": {"rho": [*NO_NUMBERS, None]},
    "lesam": {
        "sigma": [*NO_NUMBERS, None],
        "rho_max": NO_NUMBERS,
        "varrho": [*NO_NUMBERS, None],
        "max_norm": [*NO_NUMBERS, 0.0],
        "perturbation": ["both", None, True],
        "replay_rng": [1, None, "yes"],
        "when": [3, True, "always"],
        "model": ["model", nn.Module],
    },
    "lesamplus": {
        "sigma": [*NO_NUMBERS, None],
        "alpha": [*NO_NUMBERS, None],
        "rho_max": NO_NUMBERS,
        "varrho": [*NO_NUMBERS, None],
        "form": ["official", None],
    },
}


def test_every_method_has_its_bad_values():
    assert set(BAD) == set(lesam.METHODS)


@pytest.mark.parametrize(
    ("method", "option", "value"),
    [
        pytest.param(method, option, value, id=f"{method}-{option}-{value!r:.20}")
        for method, options in BAD.items()
        for option, values in options.items()
        for value in values
    ],
)
def test_a_bad_value_is_named_with_its_option(method: str, option: str, value: Any):
    with pytest.raises(ValueError, match=rf"{option}.*{re.escape(repr(value))}"):
        lesam.METHODS[method](sgd(), **{option: value})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lesam.Fixed(-1), "rho.*-1"),
        (lambda: lesam.LossBudget("much"), "sigma.*'much'"),
        (lambda: lesam.LossBudget(0.1, varrho=-1), "varrho.*-1"),
        (lambda: lesam.Adaptive(NAN), "eta.*nan"),
        (lambda: lesam.DiagonalFisher(-2), "eta.*-2"),
        (lambda: lesam.Noise(decay=2), "decay.*2"),
        (lambda: lesam.TopEigenvector(every=0), "every.*0"),
        (lambda: lesam.gap(-1), "alpha.*-1"),
        (lambda: lesam.excess(None), "alpha.*None"),
        (lambda: lesam.RandomSubset(0), "beta.*0"),
        (lambda: lesam.TopSamples(0), "gamma.*0"),
    ],
)
def test_parts_refuse_bad_values_too(make: Callable[[], Any], words: str):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("value", [-1.0, NAN, INF, None, "0.1", True])
@pytest.mark.parametrize(
    ("method", "option"),
    [
        ("sam", "rho"),
        ("lesam", "sigma"),
        ("lesam", "rho_max"),
        ("lesamplus", "alpha"),
        ("gsam", "alpha"),
        ("friendlysam", "weight"),
        ("friendlysam", "decay"),
        ("msam", "rho"),
    ],
)
@both_styles
def test_a_schedule_that_gives_a_bad_value_is_named_with_its_step(method: str, option: str, value: Any, style: str):
    model = network()
    opt = lesam.METHODS[method](sgd(model), **{option: lambda step: value if step == 2 else 0.1})
    for step, batch in enumerate(batches(3)):
        if step < 2:
            step_once(opt, model, batch, style)
            continue
        before = model_bits(model)
        with pytest.raises(ValueError, match=rf"{option}.*step 2.*{re.escape(repr(value))}"):
            step_once(opt, model, batch, style)
        assert same_bits(before, model_bits(model))
        assert opt.steps == 2


# ---------------------------------------------------------------------- the base optimizer


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lesam.SAM(torch.optim.SGD), "instance"),
        (lambda: lesam.SAM(network().parameters()), "torch.optim.Optimizer"),
        (lambda: lesam.SAM(None), "None"),
        (lambda: lesam.SAM(torch.optim.LBFGS(network().parameters())), "LBFGS"),
        (lambda: lesam.SAM(lesam.LESAM(sgd())), "LESAM"),
        (
            lambda: lesam.SAM(torch.optim.SGD([nn.Parameter(torch.zeros(2, dtype=torch.complex64))], lr=1.0)),
            "complex64",
        ),
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


# ---------------------------------------------------------------------- pairings and other options

MOMENTUM, STALE = lesam.Momentum(), lesam.Stale()


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"direction": MOMENTUM, "radius": lesam.LossBudget(0.1)}, "LossBudget.*Momentum.*slope"),
        ({"direction": MOMENTUM, "radius": lesam.LossBudget(0.1, rho_max=1.0)}, "LossBudget.*Momentum.*slope"),
        ({"direction": STALE, "radius": lesam.LossBudget(0.1, rho_max=1.0)}, "LossBudget.*Stale.*slope"),
        ({"direction": lesam.Noise(), "radius": lesam.LossBudget(0.1)}, "LossBudget.*Noise.*rho_max"),
        ({"direction": lesam.TopEigenvector(form="top"), "radius": lesam.LossBudget(0.1)}, "TopEigenvector.*rho_max"),
        ({"direction": MOMENTUM, "metric": lesam.DiagonalFisher()}, "DiagonalFisher.*Momentum.*gradient at w"),
        ({"direction": STALE, "combine": lesam.gap(0.1)}, "gap.*Stale.*gradient at w"),
        ({"direction": STALE, "combine": lesam.excess(0.1)}, "excess.*Stale.*gradient at w"),
        ({"direction": STALE, "combine": lesam.renormalized}, "renormalized.*Stale.*gradient at w"),
        ({"direction": STALE, "combine": lambda gg, gh, hh: (1, 0)}, "Stale.*gradient at w"),
        ({"direction": MOMENTUM, "subset": lesam.RandomSubset(0.5)}, "RandomSubset.*Momentum"),
        ({"direction": MOMENTUM, "samples": lesam.TopSamples(0.5)}, "TopSamples.*Momentum"),
        ({"direction": lesam.Gradient}, "Gradient.*direction"),
        ({"direction": "gradient"}, "'gradient'.*direction"),
        ({"metric": lesam.Fixed(0.1)}, r"Fixed\(0.1\).*metric"),
        ({"radius": 0.05}, "0.05.*radius"),
        ({"combine": 3}, "3.*combiner"),
        ({"combine": lesam.gap}, "gap"),  # the class: alpha was forgotten
        ({"subset": 0.5}, "0.5"),
        ({"samples": 0.5}, "0.5"),
    ],
)
def test_a_pairing_without_meaning_is_refused_at_construction(parts: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        lesam.SharpnessAware(sgd(), **parts)


@pytest.mark.parametrize(
    "parts",
    [
        {"direction": lesam.Noise(), "radius": lesam.LossBudget(0.1, rho_max=1.0)},
        {"direction": lesam.TopEigenvector(), "radius": lesam.LossBudget(0.1)},
        {"direction": lesam.TopEigenvector(form="top"), "radius": lesam.LossBudget(0.1, rho_max=1.0)},
        {"metric": lesam.Adaptive(), "radius": lesam.LossBudget(0.1)},
        {"metric": lesam.DiagonalFisher(), "radius": lesam.LossBudget(0.1), "combine": lesam.gap(0.1)},
        {"direction": MOMENTUM, "metric": lesam.Adaptive()},
        {"subset": lesam.RandomSubset(0.5), "radius": lesam.LossBudget(0.1)},
    ],
)
@both_styles
def test_pairings_with_a_meaning_run(parts: dict[str, Any], style: str):
    model = network()
    opt = lesam.SharpnessAware(sgd(model), **parts)
    start = model_bits(model)
    for batch in batches(4):
        step_once(opt, model, batch, style)
    assert not same_bits(start, model_bits(model))
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_perturb_must_name_parameters_of_the_base():
    model, stranger = network(), nn.Parameter(torch.zeros(9))
    for perturb, words in [
        ([stranger], r"\(9,\)"),
        ([], "empty"),
        (model[0].weight, "perturb=\\[tensor\\]"),
        (["weight"], "'weight'"),
    ]:
        with pytest.raises(ValueError, match=words):
            lesam.SAM(sgd(model), perturb=perturb)


# ---------------------------------------------------------------------- closures


@every_method
@pytest.mark.parametrize("later", [False, True])
def test_a_closure_without_backward(case: Case, later: bool):
    model = network()
    opt = case.make(sgd(model))
    if later:
        for batch in batches(2):
            step_once(opt, model, batch)
    x, y = next(batches(1))

    def closure() -> Tensor:
        opt.zero_grad()
        return nn.functional.cross_entropy(model(x), y)

    before = model_bits(model)
    with pytest.raises(RuntimeError, match="backward"):
        opt.step(closure)
    assert same_bits(before, model_bits(model))
    step_once(opt, model, (x, y))


def step_in_style(opt: lesam.SharpnessAware, run_pass: Callable[[], Any], style: str) -> None:
    """One step with the same function for each pass."""
    if style == "closure":
        opt.step(run_pass)
        return
    if opt.passes == 2:
        with opt.clean():
            run_pass()
    with opt.perturbed():
        run_pass()
    opt.step()


@pytest.mark.parametrize("case", [case for case in ONE_OF_EACH if case.name not in ("msam", "s2sam")], ids=str)
@both_styles
def test_a_second_pass_without_backward(case: Case, style: str):
    model = network()
    opt = case.make(sgd(model))
    x, y = next(batches(1))
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if calls == 1:
            loss.backward()
        return loss

    before = model_bits(model)
    with pytest.raises(RuntimeError, match=r"second pass.*backward"):
        step_in_style(opt, closure, style)
    assert same_bits(before, model_bits(model))
    step_once(opt, model, (x, y), style)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda opt, c: opt.step([]), "empty"),
        (lambda opt, c: opt.step(3), "3"),
        (lambda opt, c: opt.step([c, None]), "None"),
        (lambda opt, c: opt.step(c, ascent="up"), "'up'"),
        (lambda opt, c: opt.step(c, sample_losses=c), "not both"),
        (lambda opt, c: opt.step(sample_losses="all"), "'all'"),
        (lambda opt, c: opt.step(sample_losses=lambda indices=None: torch.zeros(())), r"reduction=\"none\""),
        (lambda opt, c: opt.step(torch.compile(c)), "torch.compile"),
        (lambda opt, c: lesam.SAM(opt.base, perturbation="local").step([c, c], ascent=c), "1.*2"),
    ],
)
def test_arguments_of_step_that_cannot_work(call: Callable[..., Any], words: str):
    model = network()
    opt = lesam.SAM(sgd(model))
    before = model_bits(model)
    with pytest.raises(ValueError, match=words):
        call(opt, lambda: None)
    assert same_bits(before, model_bits(model))
    step_once(opt, model, next(batches(1)))


def test_esam_needs_sample_losses():
    model = network()
    opt = lesam.ESAM(sgd(model), gamma=0.5)
    x, y = next(batches(1))
    with pytest.raises(ValueError, match=r"TopSamples\(gamma=0.5\).*sample_losses=fn"):
        step_once(opt, model, (x, y))
    nn.functional.cross_entropy(model(x), y).backward()
    with pytest.raises((RuntimeError, ValueError), match="sample_losses=fn"), opt.perturbed():
        pass
    opt.zero_grad()
    with pytest.raises((RuntimeError, ValueError), match="sample_losses=fn"):  # also where clean() came first
        step_once(opt, model, (x, y), "contexts")


# ---------------------------------------------------------------------- gradients that were there before


@every_method
def test_gradients_left_at_entry_are_an_error(case: Case):
    """The second step of a loop whose closure never clears would be that of a sum."""
    model = network()
    opt = case.make(sgd(model))
    data = list(batches(3))

    def closure_of(x: Tensor, y: Tensor) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return closure

    opt.step(closure_of(*data[0]))
    before = model_bits(model)
    with pytest.raises(RuntimeError, match=r"opt\.zero_grad"):
        opt.step(closure_of(*data[1]))
    assert same_bits(before, model_bits(model))
    step_once(opt, model, data[2])


def test_gradients_left_at_entry_are_an_error_for_a_bare_backward():
    model = network()
    opt = lesam.SAM(sgd(model))
    for step, (x, y) in enumerate(batches(2)):
        nn.functional.cross_entropy(model(x), y).backward()
        if step == 1:
            with pytest.raises(RuntimeError, match=r"opt\.zero_grad"), opt.perturbed():
                pass
            break
        with opt.perturbed():
            nn.functional.cross_entropy(model(x), y).backward()
        opt.step()


@every_method
def test_gradients_present_before_clean_are_an_error(case: Case):
    """Not those of the last step, which clean() clears itself, but a foreign backward."""
    model = network()
    opt = case.make(sgd(model))
    x, y = next(batches(1))
    nn.functional.cross_entropy(model(x), y).backward()
    before = model_bits(model)
    context = opt.clean if opt.passes == 2 else opt.perturbed
    with pytest.raises(RuntimeError, match=r"opt\.zero_grad"), context():
        nn.functional.cross_entropy(model(x), y).backward()
    assert same_bits(before, model_bits(model))


def by_model_none(opt, model):
    model.zero_grad()


def by_model_in_place(opt, model):
    model.zero_grad(set_to_none=False)


def by_base_none(opt, model):
    opt.base.zero_grad()


def by_base_in_place(opt, model):
    opt.base.zero_grad(set_to_none=False)


def by_opt_in_place(opt, model):
    opt.zero_grad(set_to_none=False)


def by_hand_none(opt, model):
    for p in model.parameters():
        p.grad = None


def by_hand_in_place(opt, model):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.detach_().zero_()


def by_hand_through_data(opt, model):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.data.zero_()


def by_halves(opt, model):
    """Two networks under one optimizer, each cleared in its own way."""
    model[0].zero_grad()
    model[2].zero_grad(set_to_none=False)


def by_other_halves(opt, model):
    model[0].zero_grad(set_to_none=False)
    model[2].zero_grad()


CLEARINGS = [
    by_model_none,
    by_model_in_place,
    by_base_none,
    by_base_in_place,
    by_opt_in_place,
    by_hand_none,
    by_hand_in_place,
    by_hand_through_data,
    by_halves,
    by_other_halves,
]
ALWAYS_FINE = [by_model_none, by_base_none, by_opt_in_place, by_hand_none]


def clearing_closure(opt: Any, model: nn.Module, x: Tensor, y: Tensor, clear: Callable) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        clear(opt, model)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


def refusal_of(call: Callable[..., Any], *arguments: Any) -> str | None:
    """The words of the RuntimeError that the call ends in, or None."""
    try:
        call(*arguments)
    except RuntimeError as error:
        return str(error)
    return None


def expected_weights(case: Case, steps: int) -> list[list[Tensor]]:
    """The trajectory with ``opt.zero_grad()``, which test_reference.py holds to the long-hand class."""
    model, trajectory = network(), []
    opt = case.make(BASES["sgd"](model.parameters()))
    for x, y in batches(steps):
        opt.step(clearing_closure(opt, model, x, y, lambda opt, _: opt.zero_grad()))
        trajectory.append([p.detach().clone() for p in model.parameters()])
    return trajectory


def assert_close(model: nn.Module, expected: list[Tensor]) -> None:
    for a, b in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(a.detach(), b, rtol=1e-10, atol=1e-12)


@every_method
@pytest.mark.parametrize("clear", CLEARINGS)
def test_however_gradients_are_cleared_the_numbers_are_right_or_it_is_an_error(case: Case, clear: Callable):
    """Plain ways of clearing work everywhere; LE-SAM+, which adds to the first gradient, may refuse the others."""
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    may_refuse = clear not in ALWAYS_FINE and (case.name == "lesamplus" or clear is by_hand_through_data)
    for (x, y), expected in zip(batches(5), expected_weights(case, 5), strict=True):
        before = model_bits(model)
        refusal = refusal_of(opt.step, clearing_closure(opt, model, x, y, clear))
        if refusal is not None:
            assert may_refuse, refusal
            assert "zero_grad" in refusal
            assert same_bits(before, model_bits(model))
            return
        assert_close(model, expected)


@pytest.mark.parametrize("clear", CLEARINGS)
def test_clearing_between_micro_batches_gives_the_right_numbers_or_an_error(clear: Callable):
    data = list(batches(3))
    ends = []
    for way in (lambda opt, _: opt.zero_grad(), clear):
        model = network()
        opt = lesam.LESAM(BASES["sgd"](model.parameters()))
        for _ in range(2):
            refusal = refusal_of(opt.step, [clearing_closure(opt, model, x, y, way) for x, y in data])
            if refusal is not None:
                assert clear not in ALWAYS_FINE
                assert "zero_grad" in refusal
                return
        ends.append([p.detach().clone() for p in model.parameters()])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["sam", "lesamplus"])
def test_a_closure_that_replaces_gradients_after_backward(name: str):
    """``p.grad = f(p.grad)``: in LE-SAM+'s second pass .grad holds the first gradient too, which counts once."""
    case = Case(name)
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    for (x, y), expected in zip(batches(3), expected_weights(case, 3), strict=True):

        def closure(x=x, y=y) -> Tensor:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            for p in model.parameters():
                p.grad = p.grad.clone()
            return loss

        before = model_bits(model)
        refusal = refusal_of(opt.step, closure)
        if refusal is not None:
            assert name == "lesamplus"
            assert "grad" in refusal
            assert same_bits(before, model_bits(model))
            return
        assert_close(model, expected)


def test_zero_grad_after_backward_in_a_pass_that_adds():
    model = network()
    opt = lesam.LESAMPlus(sgd(model))
    x, y = next(batches(1))
    before = model_bits(model)

    def closure() -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        return loss

    with pytest.raises(RuntimeError, match="zero_grad"):
        opt.step(closure)
    assert same_bits(before, model_bits(model))


# ---------------------------------------------------------------------- calls out of order


class Scene:
    """A model, an optimizer and a batch."""

    def __init__(self, **options: Any) -> None:
        self.model = network()
        self.opt = lesam.SAM(sgd(self.model), rho=0.5, **options)
        self.batch = next(batches(1))
        self.start = model_bits(self.model)

    def backward(self) -> None:
        x, y = self.batch
        nn.functional.cross_entropy(self.model(x), y).backward()

    def closure(self) -> Tensor:
        x, y = self.batch
        self.opt.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss

    def refused(self, call: Callable[[], Any], words: str) -> None:
        with pytest.raises(RuntimeError, match=words):
            call()

    def enter(self, context: str, then: Callable[[], Any] | None = None) -> None:
        """One pass, with a call in it after the backward."""
        with getattr(self.opt, context)():
            self.backward()
            if then is not None:
                then()

    def still_works(self) -> None:
        """Weights are where they were and the next step is that of a fresh optimizer."""
        assert same_bits(self.start, model_bits(self.model))
        self.opt.zero_grad()
        step_once(self.opt, self.model, self.batch)
        fresh = Scene()
        step_once(fresh.opt, fresh.model, self.batch)
        assert same_bits(model_bits(self.model), model_bits(fresh.model))


def test_step_with_nothing_pending():
    scene = Scene()
    scene.refused(scene.opt.step, "closure.*perturbed")
    scene.still_works()


def test_step_after_a_bare_backward_only():
    scene = Scene()
    scene.backward()
    scene.refused(scene.opt.step, "perturbed")
    scene.still_works()


def test_a_forgotten_perturbed_pass():
    scene = Scene()
    with scene.opt.clean():
        scene.backward()
    scene.refused(scene.opt.step, "perturbed")
    scene.refused(lambda: scene.opt.step(scene.closure), "perturbed")
    scene.still_works()


def test_clean_twice():
    scene = Scene()
    with scene.opt.clean():
        scene.backward()
    scene.refused(lambda: scene.enter("clean"), "after clean.*perturbed")
    scene.still_works()


@pytest.mark.parametrize("inner", ["clean", "perturbed"])
@pytest.mark.parametrize("outer", ["clean", "perturbed"])
def test_nested_passes(outer: str, inner: str):
    scene = Scene()
    if outer == "perturbed":
        with scene.opt.clean():
            scene.backward()
    scene.refused(lambda: scene.enter(outer, then=lambda: scene.enter(inner)), f"inside {outer}")
    scene.still_works()


@pytest.mark.parametrize("phase", ["clean", "perturbed"])
@pytest.mark.parametrize("call", ["step", "step with closure", "state_dict", "load_state_dict", "refresh"])
def test_what_cannot_be_called_inside_a_pass(phase: str, call: str):
    scene = Scene()
    saved = scene.opt.state_dict()
    calls: dict[str, Callable[[], Any]] = {
        "step": scene.opt.step,
        "step with closure": lambda: scene.opt.step(scene.closure),
        "state_dict": scene.opt.state_dict,
        "load_state_dict": lambda: scene.opt.load_state_dict(saved),
        "refresh": lambda: scene.opt.refresh(scene.closure),
    }
    if phase == "perturbed":
        scene.enter("clean")
    scene.refused(lambda: scene.enter(phase, then=calls[call]), f"inside {phase}")
    scene.still_works()


def test_an_error_caught_inside_the_pass_does_not_spoil_it():
    scene = Scene()
    with scene.opt.clean():
        scene.backward()
    with scene.opt.perturbed():
        scene.backward()
        scene.refused(scene.opt.step, "inside perturbed")
    assert same_bits(scene.start, model_bits(scene.model))
    scene.opt.step()
    fresh = Scene()
    step_once(fresh.opt, fresh.model, scene.batch)
    assert same_bits(model_bits(scene.model), model_bits(fresh.model))


@pytest.mark.parametrize("ready", [False, True])
def test_no_checkpoint_between_the_passes(ready: bool):
    scene = Scene()
    with scene.opt.clean():
        scene.backward()
    if ready:
        with scene.opt.perturbed():
            scene.backward()
    scene.refused(scene.opt.state_dict, "state_dict.*after (clean|perturbed)")
    scene.still_works()


def test_perturbed_twice():
    scene = Scene()
    with scene.opt.clean():
        scene.backward()
    with scene.opt.perturbed():
        scene.backward()
    scene.refused(lambda: scene.enter("perturbed"), "clean")
    scene.still_works()


def test_perturbed_without_a_first_pass():
    scene = Scene()
    scene.refused(lambda: scene.enter("perturbed"), "first pass")
    scene.still_works()


def test_nothing_to_train():
    model = network().requires_grad_(False)
    opt = lesam.SAM(sgd(model))
    with pytest.raises(RuntimeError, match="requires a gradient"):
        opt.step(lambda: None)


def test_refresh_of_a_method_without_anything_to_refresh():
    scene = Scene()
    scene.refused(lambda: scene.opt.refresh(scene.closure), "TopEigenvector")
    scene.still_works()


def test_local_pairs_need_clean_in_each():
    scene = Scene(perturbation="local")
    for _ in range(2):
        with scene.opt.clean():
            scene.backward()
        with scene.opt.perturbed():
            scene.backward()
    scene.refused(lambda: scene.enter("perturbed"), "clean")
    scene.still_works()


# ---------------------------------------------------------------------- gradients of another kind


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
    if style == "closure":
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
