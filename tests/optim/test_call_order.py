"""Calls out of order and closures that cannot work: a sentence that names the mistake, and nothing left behind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lesam

from .cases import BASES, ONE_OF_EACH, ONE_PASS, Case, batches, every_method, every_method_in_contexts, network, sgd
from .faults import assert_same_state, both_styles, model_bits, same_bits, step_in_style, step_once


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


@pytest.mark.parametrize("case", [case for case in ONE_OF_EACH if case.name not in ONE_PASS], ids=str)
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
    if (phase, call) == ("clean", "state_dict"):
        return  # the weights are those of the last step there
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


@every_method_in_contexts
@pytest.mark.parametrize("phase", ["inside clean", "after clean", "after perturbed"])
def test_a_checkpoint_between_the_passes_is_that_of_the_last_step(case: Case, phase: str):
    """What validation inside an accumulation window saves: resumed, it takes the same step again."""
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    *data, (x, y) = batches(4)
    for batch in data:
        step_once(opt, model, batch)
    expected = copy.deepcopy((model.state_dict(), opt.state_dict()))
    saved: list[Any] = []

    def save(now: str) -> None:
        if now == phase:
            saved.append(copy.deepcopy((model.state_dict(), opt.state_dict())))

    if opt.passes == 2:
        with opt.clean():
            nn.functional.cross_entropy(model(x), y).backward()
            save("inside clean")
        save("after clean")
    with opt.perturbed():
        nn.functional.cross_entropy(model(x), y).backward()
    save("after perturbed")
    opt.step()
    if not saved:  # a method of one pass
        return
    assert_same_state(expected[1], saved[0][1])
    again = network()
    resumed = case.make(BASES["sgd"](again.parameters()))
    again.load_state_dict(saved[0][0])
    resumed.load_state_dict(saved[0][1])
    step_once(resumed, again, (x, y), "contexts", refresh=False)
    assert same_bits(model_bits(model), model_bits(again))


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


@pytest.mark.parametrize("method", [lesam.MSAM, lesam.S2SAM])
def test_clean_around_a_one_pass_step_shows_the_norm_of_its_gradient(method: Any):
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(5, 3)
    opt = method(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), rho=0.1)
    for step in range(3):
        opt.zero_grad()
        with opt.clean():
            model(x).square().mean().backward()
            norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        with opt.perturbed():
            model(x).square().mean().backward()
        opt.step()
        if step:  # nothing is climbed before there is a buffer
            torch.testing.assert_close(opt.last.grad_norm, norm)


@pytest.mark.parametrize("name", ["ascent", "sample_losses"])
def test_what_a_first_pass_would_call_comes_before_the_passes(name: str):
    model = network()
    opt = lesam.SAM(sgd(model))
    x, y = next(batches(1))
    for context in (opt.clean, opt.perturbed):
        with context():
            nn.functional.cross_entropy(model(x), y).backward()
    given: dict[str, Any] = {name: lambda *_: pytest.fail("called")}
    with pytest.raises(ValueError, match=f"{name}= comes after the passes"):
        opt.step(**given)
    before = model_bits(model)
    opt.step()
    assert not same_bits(before, model_bits(model))
