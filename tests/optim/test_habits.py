"""Habits of real training scripts around the passes: right numbers, or a sentence that names the remedy."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lesam

from .cases import (
    BASES,
    Case,
    batches,
    closure_for,
    every_method,
    every_method_in_contexts,
    flat,
    network,
    sgd,
    train,
    weights,
)
from .clearing import by_base, by_hand, by_model, by_model_in_place, by_opt, refusal_of
from .faults import model_bits, same_bits, step_once


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def reference(case: Case, steps: int, parts: int = 1) -> Tensor:
    """Where plain closures lead."""
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    for x, y in batches(steps):
        opt.step([closure_for(opt, model, a, b) for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True)])
    return flat(weights(model))


# ---------------------------------------------------------------------- between clean() and perturbed()


@pytest.mark.parametrize("clear", [by_model, by_base, by_hand])
@every_method_in_contexts
def test_clearing_between_the_passes_is_harmless(case: Case, clear: Callable[..., None]):
    """As packages with first_step(zero_grad=True) do it."""
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    for x, y in batches(4):
        if opt.refresh_due:
            opt.refresh(closure_for(opt, model, x, y))
        if opt.passes == 2:
            with opt.clean():
                loss_of(model, x, y).backward()
            clear(opt, model)
        with opt.perturbed():
            loss_of(model, x, y).backward()
        opt.step()
    torch.testing.assert_close(flat(weights(model)), reference(case, 4), rtol=1e-9, atol=1e-12)


def clip(opt: Any, model: nn.Module, batch: Any) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def backward_again(opt: Any, model: nn.Module, batch: Any) -> None:
    loss_of(model, *batch).backward()


def zero_in_place(opt: Any, model: nn.Module, batch: Any) -> None:
    by_model_in_place(opt, model)


def freeze(opt: Any, model: nn.Module, batch: Any) -> None:
    model[0].requires_grad_(False)


def add_parameters(opt: Any, model: nn.Module, batch: Any) -> None:
    opt.base.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


@pytest.mark.parametrize("change", [clip, backward_again, zero_in_place, freeze, add_parameters])
@pytest.mark.parametrize("name", ["sam", "lesam", "lesamplus", "gsam"])
def test_changes_between_the_passes_are_refused(name: str, change: Callable[..., None]):
    model = network()
    opt = lesam.METHODS[name](sgd(model))
    batch = next(batches(1))
    with opt.clean():
        loss_of(model, *batch).backward()
    before = model_bits(model)
    change(opt, model, batch)
    with pytest.raises(RuntimeError, match=r"between clean\(\) and perturbed\(\)"), opt.perturbed():
        pass
    assert same_bits(before, model_bits(model))
    model.requires_grad_(True)
    opt.zero_grad()
    loss = loss_of(model, *batch)
    loss.backward()  # no hook of ours is left on the parameters
    expected = torch.autograd.grad(loss_of(model, *batch), list(model.parameters()))
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected, strict=True))


@pytest.mark.parametrize("bare", [False, True])
def test_unscaling_between_the_passes_is_refused(bare: bool):
    """The scaler would not unscale the combined gradient again, and the step be as much too long as the scale."""
    model = network(dtype=torch.float32)
    opt = lesam.SAM(sgd(model))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = next(batches(1, dtype=torch.float32))
    if bare:
        scaler.scale(loss_of(model, x, y)).backward()
    else:
        with opt.clean(scaler):
            scaler.scale(loss_of(model, x, y)).backward()
    scaler.unscale_(opt)
    with pytest.raises(RuntimeError, match="max_norm="), opt.perturbed(scaler):
        pass


# ---------------------------------------------------------------------- gradients made elsewhere


@every_method
def test_a_backward_before_the_step_instead_of_in_it_is_refused(case: Case):
    """``loss.backward(); opt.step(lambda: loss)``: no pass has a gradient of its own."""
    model = network()
    opt = case.make(sgd(model))
    before = model_bits(model)
    loss = loss_of(model, *next(batches(1)))
    loss.backward()
    assert refusal_of(opt.step, lambda: loss) is not None
    assert same_bits(before, model_bits(model))


def test_a_gradient_left_in_a_part_of_the_model_is_refused_after_a_step_too():
    """A penalty on the head only, before the step: it was meant to count."""
    model = network()
    opt = lesam.SAM(sgd(model))
    data = list(batches(2))

    def closure(x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(model, x, y)
        loss.backward()
        return loss

    opt.step(lambda: closure(*data[0]))
    model[2].weight.square().sum().backward()
    with pytest.raises(RuntimeError, match=r"opt\.zero_grad"):
        opt.step(lambda: closure(*data[1]))


@pytest.mark.parametrize(("name", "parts"), [("lesamplus", 1), ("sam", 2), ("gsam", 2)])
def test_gradients_in_tensors_that_the_user_keeps_and_fills_again(name: str, parts: int):
    case = Case(name)
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    kept = [torch.zeros_like(p) for p in model.parameters()]

    def closure_of(x: Tensor, y: Tensor) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            loss = loss_of(model, x, y)
            grads = torch.autograd.grad(loss, list(model.parameters()))
            for p, mine, g in zip(model.parameters(), kept, grads, strict=True):
                p.grad = mine.copy_(g)
            return loss

        return closure

    for x, y in batches(3):
        opt.step([closure_of(a, b) for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True)])
    torch.testing.assert_close(flat(weights(model)), reference(case, 3, parts), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["sam", "lesamplus"])
def test_bare_backwards_that_never_clear_are_refused(name: str):
    """Two backwards a step, as in accumulation by hand."""
    model = network()
    opt = lesam.METHODS[name](sgd(model))

    def step(x: Tensor, y: Tensor) -> None:
        loss_of(model, x, y).backward()
        loss_of(model, x, y).backward()
        with opt.perturbed():
            loss_of(model, x, y).backward()
        opt.step()

    first, second = batches(2)
    step(*first)
    with pytest.raises(RuntimeError, match=r"opt\.zero_grad"):
        step(*second)


@pytest.mark.parametrize("clear", [by_opt, lambda opt, model: opt.zero_grad(set_to_none=False), by_model_in_place])
def test_bare_backwards_after_any_way_of_clearing(clear: Callable[..., None]):
    case = Case("lesam", {"sigma": 0.05})
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    for x, y in batches(3):
        clear(opt, model)
        loss_of(model, x, y).backward()
        with opt.perturbed():
            loss_of(model, x, y).backward()
        opt.step()
    torch.testing.assert_close(flat(weights(model)), reference(case, 3), rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------------- hooks and graphs of the user's


def halve(parameter: Tensor) -> None:
    parameter.grad.mul_(0.5)


@pytest.mark.parametrize("name", ["sam", "lesam", "lesamplus", "gsam"])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_hook_that_scales_gradients_sees_each_closures_own(name: str, parts: int):
    """register_post_accumulate_grad_hook, against the same factor on the loss."""
    case, ends = Case(name), []
    for hooked in (True, False):
        model = network()
        opt = case.make(BASES["sgd"](model.parameters()))
        if hooked:
            for p in model.parameters():
                p.register_post_accumulate_grad_hook(halve)
        for x, y in batches(3):
            chunks = zip(x.chunk(parts), y.chunk(parts), strict=True)
            opt.step([closure_for(opt, model, a, b, factor=1.0 if hooked else 0.5) for a, b in chunks])
        ends.append(flat(weights(model)))
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "parts"), [("lesamplus", 1), ("sam", 2)])
def test_a_graph_through_a_sum_of_gradients_is_refused(name: str, parts: int):
    model = network()
    opt = lesam.METHODS[name](sgd(model))
    x, y = next(batches(1))

    def closure() -> Tensor:
        opt.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward(create_graph=True)
        return loss

    before = model_bits(model)
    with pytest.raises(RuntimeError, match="create_graph"):
        opt.step([closure] * parts)
    assert same_bits(before, model_bits(model))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "parts"), [("lesamplus", 1), ("sam", 2)])
def test_a_layer_used_twice_under_reentrant_checkpointing(name: str, parts: int):
    case, ends = Case(name), []
    for checkpointed in (True, False):
        model = network()
        layer = nn.Linear(7, 7).double()
        with torch.no_grad():
            layer.weight.copy_(torch.eye(7))
            layer.bias.zero_()
        opt = case.make(BASES["sgd"]([*model.parameters(), *layer.parameters()]))

        def forward(x: Tensor, model=model, layer=layer, checkpointed=checkpointed) -> Tensor:
            hidden = model[1](model[0](x))
            for _ in range(2):
                hidden = checkpoint(layer, hidden, use_reentrant=True) if checkpointed else layer(hidden)
            return model[2](hidden)

        for x, y in batches(3):

            def closure_of(x: Tensor, y: Tensor, forward=forward, opt=opt) -> Callable[[], Tensor]:
                def closure() -> Tensor:
                    opt.zero_grad()
                    loss = nn.functional.cross_entropy(forward(x), y)
                    loss.backward()
                    return loss

                return closure

            opt.step([closure_of(a, b) for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True)])
        ends.append(flat(weights(model)))
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-12)


class Failing(torch.autograd.Function):
    """A backward that runs out of memory once."""

    failures = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if Failing.failures:
            Failing.failures -= 1
            raise MemoryError("on purpose")
        return grad


@pytest.mark.parametrize("name", ["sam", "lesamplus"])
def test_a_backward_that_fails_and_is_tried_again_in_the_closure(name: str):
    """Right where the gradient stands alone; where it is added to another, that may be gone, and it is refused."""
    case = Case(name)
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    x, y = next(batches(1))
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        Failing.failures = int(calls == 2)
        for _ in range(2):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model[2](Failing.apply(model[1](model[0](x)))), y)
            try:
                loss.backward()
                break
            except MemoryError:
                continue
        return loss

    refusal = refusal_of(opt.step, closure)
    if name == "lesamplus":
        assert "zero_grad" in (refusal or "")
    else:
        torch.testing.assert_close(flat(weights(model)), reference(case, 1), rtol=1e-9, atol=1e-12)


class Undefined(torch.autograd.Function):
    """Gives no gradient to its second input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        return x + 0.0 * w.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def test_a_parameter_that_is_used_but_gets_no_gradient():
    model, extra = network(), nn.Parameter(torch.ones(3, dtype=torch.float64))
    opt = lesam.LESAMPlus(torch.optim.SGD([*model.parameters(), extra], lr=0.1))
    extra.grad = torch.zeros_like(extra)
    x, y = next(batches(1))

    def closure() -> Tensor:
        opt.zero_grad()
        loss = loss_of(model, x, y) + extra.sum() if not opt.steps and extra.grad is None else loss_of(model, x, y)
        loss = Undefined.apply(loss, extra)
        loss.backward()
        return loss

    opt.step([closure, closure])
    assert opt.steps == 1


# ---------------------------------------------------------------------- odds and ends


def test_a_predicate_that_draws_is_asked_once_a_step():
    """Randomised SAM: sharpness-aware in half of the steps, by chance."""
    random.seed(0)
    asked: list[int] = []

    def now(step: int) -> bool:
        asked.append(step)
        return random.random() < 0.5

    model = network()
    opt = lesam.SAM(sgd(model), when=now)
    for number, batch in enumerate(batches(8)):
        assert opt.passes in (1, 2)
        step_once(opt, model, batch, "closure" if number % 2 else "contexts")
    assert asked == list(range(8))


def test_heads_that_alternate_under_esam():
    heads = nn.ModuleList([network(), network(seed=1)])
    opt = lesam.ESAM(sgd(heads), gamma=1.0, beta=0.3)
    for number, (x, y) in enumerate(batches(12)):
        opt.step(closure_for(opt, heads[number % 2], x, y))
    assert opt.steps == 12


def test_what_the_last_step_saw_can_be_pickled():
    model = network()
    opt = lesam.LESAM(sgd(model))
    train(opt, model, 1)
    again = pickle.loads(pickle.dumps(opt.last))
    assert {name: float(again[name]) for name in again} == {name: float(opt.last[name]) for name in opt.last}
    assert copy.deepcopy(opt.last).rho == opt.last.rho


def test_state_can_be_reset():
    model = network()
    opt = lesam.FriendlySAM(sgd(model))
    train(opt, model, 2)
    opt.state.clear()
    assert not any("lesam" in key for state in opt.state_dict()["state"].values() for key in state)


@pytest.mark.parametrize("returned", [lambda loss: (loss, 0.5), lambda loss: {"loss": loss}, lambda loss: None])
def test_micro_batches_that_return_no_plain_loss(returned: Callable[[Tensor], Any]):
    case = Case("sam")
    model = network()
    opt = case.make(BASES["sgd"](model.parameters()))
    for x, y in batches(2):
        parts = list(zip(x.chunk(2), y.chunk(2), strict=True))
        inner = [closure_for(opt, model, a, b) for a, b in parts]
        assert opt.step([lambda c=c: returned(c()) for c in inner]) is None
    torch.testing.assert_close(flat(weights(model)), reference(case, 2, 2), rtol=1e-9, atol=1e-12)


def test_sparse_micro_batches_are_refused_by_name():
    model = nn.Sequential(nn.Embedding(9, 3, sparse=True), nn.Linear(3, 3))
    opt = lesam.SAM(torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = torch.arange(9), torch.zeros(9, dtype=torch.long)
    with pytest.raises(RuntimeError, match="sparse=False"):
        opt.step([closure_for(opt, model, x, y)] * 2)


def test_parameters_without_values_are_refused():
    lazy = nn.LazyLinear(3)
    opt = lesam.SAM(torch.optim.SGD(lazy.parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match="run one forward"):
        opt.step(lambda: None)


def test_an_interrupt_while_weights_are_put_back():
    """A second Ctrl-C, in the very copy that undoes the perturbation."""
    model = network()
    opt = lesam.SAM(sgd(model), rho=0.5)
    before = model_bits(model)
    x, y = next(batches(1))
    space, calls = opt._loop.prepare(), 0
    real = type(space).copy_

    def interrupted(self: Any, *arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        real(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(space), "copy_", interrupted)
        with pytest.raises(KeyboardInterrupt):
            opt.step(closure_for(opt, model, x, y))
    assert same_bits(before, model_bits(model))
    step_once(opt, model, (x, y))
