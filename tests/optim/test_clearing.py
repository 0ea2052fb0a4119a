"""However a pass clears gradients, the step is that of its own gradient, or it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lesam

from .cases import BASES, ONE_OF_EACH, Case, batches, every_method, every_method_in_contexts, network, sgd
from .clearing import (
    CLEARINGS,
    Clearing,
    by_hand,
    by_hand_through_data,
    by_model,
    by_model_in_place,
    by_opt,
    clearing_closure,
    clipping_closure,
    not_at_all,
    refusal_of,
)
from .faults import model_bits, same_bits, step_in_style, step_once

BY_NAME = {str(case): case for case in ONE_OF_EACH}


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
def test_however_gradients_are_cleared_the_numbers_are_right(case: Case, clear: Clearing):
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    for (x, y), expected in zip(batches(5), expected_weights(case, 5), strict=True):
        opt.step(clearing_closure(opt, model, x, y, clear))
        assert_close(model, expected)


@every_method
@pytest.mark.parametrize("clear", CLEARINGS)
def test_however_gradients_are_cleared_between_micro_batches(case: Case, clear: Clearing):
    """Micro-batches of equal size are the whole batch."""
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    for (x, y), expected in zip(batches(5), expected_weights(case, 5), strict=True):
        parts = zip(x.chunk(4), y.chunk(4), strict=True)
        opt.step([clearing_closure(opt, model, *part, clear) for part in parts])
        assert_close(model, expected)


@pytest.mark.parametrize("clear", CLEARINGS)
@pytest.mark.parametrize("name", ["sam", "lesam", "lesamplus", "msam"])
def test_clearing_after_the_step_instead_of_before_the_backward(name: str, clear: Clearing):
    case = BY_NAME[name]
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    for (x, y), expected in zip(batches(4), expected_weights(case, 4), strict=True):
        opt.step(clearing_closure(opt, model, x, y, not_at_all))
        clear(opt, model)
        assert_close(model, expected)


@every_method
def test_gradients_of_somebody_else_that_a_closure_does_not_clear_are_an_error(case: Case):
    """Accumulated before the step by hand: they were meant to count, and would not."""
    model = network()
    opt = case.make(sgd(model))
    data = list(batches(3))
    opt.step(clearing_closure(opt, model, *data[0], by_opt))
    opt.zero_grad()
    nn.functional.cross_entropy(model(data[1][0]), data[1][1]).backward()
    before = model_bits(model)
    with pytest.raises(RuntimeError, match=r"opt\.zero_grad.*list of closures"):
        opt.step(clearing_closure(opt, model, *data[1], not_at_all))
    assert same_bits(before, model_bits(model))
    step_once(opt, model, data[2])


@every_method
@pytest.mark.parametrize("clear", CLEARINGS[1:])
def test_gradients_of_somebody_else_that_a_closure_clears_are_harmless(case: Case, clear: Clearing):
    """A discriminator's loss leaves gradients in the generator."""
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    for (x, y), expected in zip(batches(3), expected_weights(case, 3), strict=True):
        (7 * nn.functional.cross_entropy(model(x), y)).backward()
        if clear is by_hand_through_data:  # moves no version, so it cannot be told from not clearing
            assert refusal_of(opt.step, clearing_closure(opt, model, x, y, clear)) is not None
            return
        opt.step(clearing_closure(opt, model, x, y, clear))
        assert_close(model, expected)


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


@every_method_in_contexts
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


@pytest.mark.parametrize("between", [by_opt, by_model, by_model_in_place, by_hand], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["lesamplus", "sam"])
def test_clearing_between_two_backwards_of_one_closure(name: str, between: Clearing):
    """Only the second backward counts; where it was to be added to something, that is gone, and it is an error."""
    case = BY_NAME[name]
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    for (x, y), expected in zip(batches(3), expected_weights(case, 3), strict=True):

        def closure(x=x, y=y) -> Tensor:
            opt.zero_grad()
            (3 * nn.functional.cross_entropy(model(x), y)).backward()
            between(opt, model)
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        before = model_bits(model)
        refusal = refusal_of(opt.step, closure)
        if name == "lesamplus":
            assert "zero_grad" in (refusal or "")
            assert same_bits(before, model_bits(model))
            return
        assert refusal is None
        assert_close(model, expected)


@every_method
def test_two_backwards_of_one_closure_add_up(case: Case):
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    for (x, y), expected in zip(batches(5), expected_weights(case, 5), strict=True):

        def closure(x=x, y=y) -> Tensor:
            opt.zero_grad()
            losses = [nn.functional.cross_entropy(model(a), b) / 2 for a, b in zip(x.chunk(2), y.chunk(2), strict=True)]
            for loss in losses:
                loss.backward()
            return sum(losses)

        opt.step(closure)
        assert_close(model, expected)


@every_method
def test_gradients_assigned_by_hand(case: Case):
    """No backward: ``p.grad = torch.autograd.grad(...)``."""
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    for (x, y), expected in zip(batches(5), expected_weights(case, 5), strict=True):

        def closure(x=x, y=y) -> Tensor:
            loss = nn.functional.cross_entropy(model(x), y)
            for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
                p.grad = g
            return loss

        if case.name == "esam":  # its shorter backward freezes tensors
            continue
        opt.step(closure)
        assert_close(model, expected)


@every_method
def test_what_a_closure_reads_in_grad_is_its_own_gradient(case: Case):
    """Also autograd.grad in a pass whose gradients are added to others. Where they are, .grad holds the sum by then."""
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    for x, y in batches(5):

        def closure(x=x, y=y) -> Tensor:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            wanted = [p for p in model.parameters() if p.requires_grad]
            own = torch.autograd.grad(loss, wanted, retain_graph=True)
            loss.backward()
            again = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), wanted)
            assert all(torch.equal(a, b) for a, b in zip(own, again, strict=True))
            if case.name not in ("lesamplus", "crsam"):
                assert all(torch.equal(p.grad, g) for p, g in zip(wanted, own, strict=True))
            return loss

        opt.step(closure)


# ---------------------------------------------------------------------- clipping inside a closure


BUDGETS = ["lesam", "lesamplus"]


def clip_through_data(parameters: Iterable[Tensor], value: float) -> None:
    """As in scripts of old: no version is moved."""
    for p in parameters:
        p.grad.data.clamp_(-value, value)


@pytest.mark.parametrize("case", [case for case in ONE_OF_EACH if case.name in BUDGETS], ids=str)
@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_, clip_through_data])
def test_clipping_in_a_pass_that_decides_a_radius_is_an_error(case: Case, clip: Callable[..., Any]):
    """sigma / |g| with |g| = 0.01 would be a radius of its own."""
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    x, y = next(batches(1))

    def run_pass() -> Tensor:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        clip(model.parameters(), 0.01)
        return loss

    before = model_bits(model)
    for style in ("closure", "contexts"):
        with pytest.raises(RuntimeError, match="max_norm="):
            step_in_style(opt, run_pass, style)
        assert same_bits(before, model_bits(model))
        assert opt.steps == 0


def test_clipping_a_part_of_the_model_is_seen_as_well():
    model = network()
    opt = lesam.LESAM(sgd(model), sigma=0.1)
    x, y = next(batches(1))

    def closure() -> Tensor:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model[2].parameters(), 0.01)
        return loss

    with pytest.raises(RuntimeError, match="max_norm="):
        opt.step(closure)


@pytest.mark.parametrize("name", ["sam", "asam", "friendlysam", "msam", "s2sam"])
def test_clipping_where_the_radius_is_fixed_clips_the_descent(name: str):
    """The direction of a clipped gradient is the same, and its g_hat is clipped as by max_norm."""
    case = BY_NAME[name]
    ends = []
    for clipped in (True, False):
        model = network()
        opt = case.make(BASES["sgd"](model.parameters()), **({} if clipped else {"max_norm": 0.1}))
        for x, y in batches(4):
            opt.step(clipping_closure(opt, model, x, y, 0.1) if clipped else clearing_closure(opt, model, x, y, by_opt))
        ends.append([p.detach().clone() for p in model.parameters()])
        if name == "friendlysam":  # whose average remembers what it is given
            return
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
