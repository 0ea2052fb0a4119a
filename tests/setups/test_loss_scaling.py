"""fp16 with ``torch.amp.GradScaler``: unscaled radii, whole steps or none, one backoff for each overflow."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lesam

from ..optim.cases import CLOSURES_ONLY, ONE_OF_EACH, ONE_PASS, Case, batches, climbing, every_method_in_contexts, flat
from ..optim.faults import assert_same_state, model_bits, same_bits, step_once
from ..reference.long_hand import dot

IN_CONTEXTS = [case for case in ONE_OF_EACH if case.name not in CLOSURES_ONLY]
TWO_PASSES = [climbing(case) for case in IN_CONTEXTS if case.name not in (*ONE_PASS, "looksam")]
BARE = [case for case in TWO_PASSES if case.name != "aesam"]  # whose gate needs clean()
FUSED: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda params, fused=False: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-2, fused=fused),
    "adam": lambda params, fused=False: torch.optim.Adam(params, lr=0.02, fused=fused),
    "adamw": lambda params, fused=False: torch.optim.AdamW(params, lr=0.02, fused=fused),
}
first_styles = pytest.mark.parametrize("first", ["clean", "bare"])


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 7, bias=False), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3))


def scaled_step(
    opt: Any,
    scaler: Any,
    model: nn.Module,
    batch: tuple[Tensor, Tensor],
    first: str = "clean",
    overflow: int | None = None,
    before_step: Callable[[], Any] = lambda: None,
) -> None:
    """One step as the documentation has it; the loss of pass ``overflow`` is infinite."""

    def backward(number: int) -> None:
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        scaler.scale(loss * float("inf") if number == overflow else loss).backward()

    two = opt.passes == 2
    if two and first == "clean":
        with opt.clean(scaler):
            backward(0)
    elif two:
        opt.zero_grad()
        backward(0)
    if not two or opt.passes == 2:
        with opt.perturbed(scaler):
            backward(1)
    before_step()
    scaler.step(opt)
    scaler.update()


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return FUSED["sgd"](model.parameters(), **options)


# ---------------------------------------------------------------------- equal to a run without a scaler


@every_method_in_contexts
@first_styles
@pytest.mark.parametrize("scale", [1.0, 2.0**16])
def test_equals_the_run_without_a_scaler(case: Case, first: str, scale: float):
    if first == "bare" and case.name == "aesam":
        pytest.skip("its gate needs clean()")
    model, other = network(), network()
    opt, plain = case.make(sgd(model), model=model), case.make(sgd(other), model=other)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for batch in batches(4, dtype=torch.float32):
        scaled_step(opt, scaler, model, batch, first)
        step_once(plain, other, batch)
        for name in ("rho", "grad_norm", "slope"):
            torch.testing.assert_close(opt.last[name], plain.last[name], rtol=1e-4, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(flat(model.parameters()), flat(other.parameters()), rtol=1e-4, atol=1e-5)
    assert opt.steps == 4


@every_method_in_contexts
def test_half_precision_stays_near_full_precision(case: Case):
    """fp16 autocast with a scaler against float32: as near as rounding to eleven bits allows."""
    model, other = network(), network()
    opt, plain = case.make(sgd(model), model=model), case.make(sgd(other), model=other)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for x, y in batches(4, dtype=torch.float32):
        if opt.passes == 2:
            with opt.clean(scaler), torch.autocast("cpu", torch.float16):
                scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        with opt.perturbed(scaler), torch.autocast("cpu", torch.float16):
            scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        scaler.step(opt)
        scaler.update()
        step_once(plain, other, (x, y))
    assert opt.steps == 4
    torch.testing.assert_close(flat(model.parameters()), flat(other.parameters()), rtol=2e-2, atol=5e-3)
    torch.testing.assert_close(opt.last.rho, plain.last.rho, rtol=2e-2, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("method", ["sam", "lesam", "lesamplus", "gsam", "msam"])
def test_a_fused_base_equals_an_unfused_one(name: str, method: str):
    case = next(case for case in ONE_OF_EACH if case.name == method)
    runs = []
    for fused in (False, True):
        model = network()
        opt = case.make(FUSED[name](model.parameters(), fused=fused), model=model)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
        for number, batch in enumerate(batches(5, dtype=torch.float32)):
            scaled_step(opt, scaler, model, batch, overflow=1 if number == 2 else None)
        assert opt.steps == 4
        runs.append(flat(model.parameters()))
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-5, atol=1e-6)


def test_a_scaler_that_is_switched_off_is_no_scaler():
    model, other = network().double(), network().double()
    opt, plain = lesam.LESAM(sgd(model), model=model), lesam.LESAM(sgd(other), model=other)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for batch in batches(3):
        scaled_step(opt, scaler, model, batch)
        step_once(plain, other, batch, "contexts")
    assert same_bits(model_bits(model), model_bits(other))


def test_the_scale_grows_between_steps():
    model, other = network(), network()
    opt, plain = lesam.LESAMPlus(sgd(model), model=model), lesam.LESAMPlus(sgd(other), model=other)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    scales = []
    for batch in batches(6, dtype=torch.float32):
        scaled_step(opt, scaler, model, batch)
        step_once(plain, other, batch)
        scales.append(scaler.get_scale())
    assert scales == [4.0, 8.0, 8.0, 16.0, 16.0, 32.0]
    torch.testing.assert_close(flat(model.parameters()), flat(other.parameters()), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------- the combined gradient


@pytest.mark.parametrize("scale", [1.0, 512.0])
@pytest.mark.parametrize("method", ["lesamplus", "gsam", "ssam", "sam"])
def test_the_combined_gradient_is_there_when_perturbed_exits(method: str, scale: float):
    """Still scaled, as the scaler expects it; unscaled it is ``a g_hat + b g``."""
    case = next(case for case in ONE_OF_EACH if case.name == method)
    model = network()
    opt = case.make(sgd(model))
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    parameters = list(model.parameters())
    x, y = next(batches(1, dtype=torch.float32))
    with opt.clean(scaler):
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
    g = [p.grad / scale for p in parameters]
    with opt.perturbed(scaler):
        loss = nn.functional.cross_entropy(model(x), y)
        g_hat = torch.autograd.grad(loss, parameters, retain_graph=True)
        scaler.scale(loss).backward()
    gg, gh, hh = dot(g, g), dot(g, g_hat), dot(g_hat, g_hat)
    a, b = {
        "sam": (1.0, 0.0),
        "ssam": ((gg / hh) ** 0.5, 0.0),
        "gsam": (1 + 0.4 * gh / hh, -0.4),
        "lesamplus": (1.5, -0.5),
    }[method]
    for p, x, y in zip(parameters, g, g_hat, strict=True):
        torch.testing.assert_close(p.grad / scale, a * y + b * x, rtol=1e-3, atol=1e-6)


def test_unscaling_and_clipping_oneself_equals_max_norm():
    model, other = network(), network()
    opt = lesam.LESAMPlus(sgd(model), model=model)
    clipping = lesam.LESAMPlus(sgd(other), model=other, max_norm=0.05)
    scaler, same = (torch.amp.GradScaler("cpu", init_scale=2.0**8) for _ in range(2))

    def unscale_and_clip() -> None:
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    for batch in batches(4, dtype=torch.float32):
        scaled_step(opt, scaler, model, batch, before_step=unscale_and_clip)
        scaled_step(clipping, same, other, batch)
    torch.testing.assert_close(flat(model.parameters()), flat(other.parameters()), rtol=1e-5, atol=1e-7)


# ---------------------------------------------------------------------- overflow


LOOKING = Case("looksam", {"rho": 0.1, "alpha": 0.5, "every": 3}, "looksam-climbing")  # in the step that overflows
OVERFLOWS = [
    pytest.param(case, overflow, id=f"{case}-pass-{overflow}")
    for case in (*TWO_PASSES, *(case for case in IN_CONTEXTS if case.name in (*ONE_PASS, "looksam")), LOOKING)
    for overflow in ((0, 1) if case in (*TWO_PASSES, LOOKING) else (1,))
]


@pytest.mark.parametrize(("case", "overflow"), OVERFLOWS)
@pytest.mark.parametrize("own_unscale", [False, True])
def test_an_overflow_skips_the_whole_step_and_training_goes_on(case: Case, overflow: int, own_unscale: bool):
    """Equal, bit for bit, to a run whose scaler was halved at that point and that never saw the batch."""
    data = list(batches(5, dtype=torch.float32))
    model, other = network(), network()
    opt, undisturbed = case.make(sgd(model), model=model), case.make(sgd(other), model=other)
    scaler, same = (torch.amp.GradScaler("cpu", init_scale=2.0**8) for _ in range(2))
    before_step = (lambda: scaler.unscale_(opt)) if own_unscale else (lambda: None)
    other_before_step = (lambda: same.unscale_(undisturbed)) if own_unscale else (lambda: None)
    for number, batch in enumerate(data):
        if number == 3:
            weights, state = model_bits(model), copy.deepcopy(opt.state_dict())
            scaled_step(opt, scaler, model, batch, overflow=overflow, before_step=before_step)
            assert same_bits(weights, model_bits(model))  # parameters and BatchNorm statistics
            assert_same_state(opt.state_dict(), state)
            assert scaler.get_scale() == 2.0**7  # once, not once for each pass
            same.update(2.0**7)
            continue
        scaled_step(opt, scaler, model, batch, before_step=before_step)
        scaled_step(undisturbed, same, other, batch, before_step=other_before_step)
    assert opt.steps == 4
    assert same_bits(model_bits(model), model_bits(other))
    assert_same_state(opt.state_dict(), undisturbed.state_dict())


@pytest.mark.parametrize("case", BARE, ids=str)
@pytest.mark.parametrize("overflow", [0, 1])
def test_an_overflow_after_a_bare_backward(case: Case, overflow: int):
    """BatchNorm has seen the first pass then; nothing else has changed."""
    model = network()
    opt = case.make(sgd(model), model=model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    data = list(batches(3, dtype=torch.float32))
    scaled_step(opt, scaler, model, data[0], "bare")
    weights, state = [p.detach().clone() for p in model.parameters()], copy.deepcopy(opt.state_dict())
    scaled_step(opt, scaler, model, data[1], "bare", overflow)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert_same_state(opt.state_dict(), state)
    assert scaler.get_scale() == 2.0**7
    scaled_step(opt, scaler, model, data[2], "bare")
    assert opt.steps == 2


@pytest.mark.parametrize("case", TWO_PASSES, ids=str)
def test_an_overflow_in_pass_one_perturbs_by_zero_and_poisons_the_gradient(case: Case):
    model = network()
    opt = case.make(sgd(model))
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    x, y = next(batches(1, dtype=torch.float32))
    weights = [p.detach().clone() for p in model.parameters()]
    with opt.clean(scaler):
        (scaler.scale(nn.functional.cross_entropy(model(x), y)) * float("inf")).backward()
    with opt.perturbed(scaler):
        assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
    assert not all(p.grad.isfinite().all() for p in model.parameters())


def test_overflows_until_the_scale_fits():
    """A scale that is far too large comes down step by step, and training starts by itself."""
    model = network()
    opt = lesam.LESAM(sgd(model), model=model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    x, y = next(batches(1, dtype=torch.float32))
    taken = []
    for _ in range(20):
        with opt.clean(scaler), torch.autocast("cpu", torch.float16):
            scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        with opt.perturbed(scaler), torch.autocast("cpu", torch.float16):
            scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        scaler.step(opt)
        scaler.update()
        taken.append(opt.steps)
    assert taken[0] == 0
    assert taken[-1] > 5
    assert scaler.get_scale() == 2.0 ** (24 - taken.count(0) - (len(taken) - taken.count(0) - taken[-1]))
    assert all(p.isfinite().all() for p in model.parameters())


# ---------------------------------------------------------------------- misuse that can be seen


def test_a_scaler_for_the_first_pass_only():
    model = network()
    opt, scaler = lesam.LESAM(sgd(model)), torch.amp.GradScaler("cpu")
    x, y = next(batches(1, dtype=torch.float32))
    with opt.clean(scaler):
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
    with pytest.raises(RuntimeError, match="same scaler"), opt.perturbed():
        pass


def test_a_scaler_for_the_second_pass_only():
    model = network()
    opt, scaler = lesam.LESAM(sgd(model)), torch.amp.GradScaler("cpu")
    x, y = next(batches(1, dtype=torch.float32))
    with opt.clean():
        nn.functional.cross_entropy(model(x), y).backward()
    with pytest.raises(RuntimeError, match="same scaler"), opt.perturbed(scaler):
        pass


def test_a_scaler_for_the_passes_but_not_for_the_step():
    model = network()
    opt, scaler = lesam.LESAM(sgd(model)), torch.amp.GradScaler("cpu")
    batch = next(batches(1, dtype=torch.float32))
    for around in (opt.clean, opt.perturbed):
        with around(scaler):
            scaler.scale(nn.functional.cross_entropy(model(batch[0]), batch[1])).backward()
    with pytest.raises(RuntimeError, match=r"scaler\.step\(opt\)"):
        opt.step()


def test_a_scaler_for_the_step_but_not_for_the_passes():
    model = network()
    opt, scaler = lesam.LESAM(sgd(model)), torch.amp.GradScaler("cpu", init_scale=2.0)
    x, y = next(batches(1, dtype=torch.float32))
    for around in (opt.clean, opt.perturbed):
        with around():
            scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
    with pytest.raises(RuntimeError, match="scaler"):
        scaler.step(opt)


def test_a_scaler_that_scaled_nothing():
    model = network()
    opt, scaler = lesam.LESAM(sgd(model)), torch.amp.GradScaler("cpu")
    x, y = next(batches(1, dtype=torch.float32))
    with opt.clean(scaler):
        nn.functional.cross_entropy(model(x), y).backward()
    with pytest.raises(RuntimeError, match=r"scaler\.scale\(loss\)"), opt.perturbed(scaler):
        pass


@pytest.mark.parametrize("style", ["closure", "contexts"])
def test_gradients_left_scaled_are_seen_on_the_first_step(style: str):
    model = network()
    opt, scaler = lesam.LESAM(sgd(model)), torch.amp.GradScaler("cpu")
    x, y = next(batches(1, dtype=torch.float32))
    before = model_bits(model)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = scaler.scale(nn.functional.cross_entropy(model(x), y))
        loss.backward()
        return loss

    def contexts() -> None:
        with opt.clean():
            closure()
        with opt.perturbed():
            closure()

    with pytest.raises(RuntimeError, match="GradScaler"):
        opt.step(closure) if style == "closure" else contexts()
    parameters = [name for name, _ in model.named_parameters()]
    after = dict(zip(model.state_dict(), model_bits(model), strict=True))
    were = dict(zip(model.state_dict(), before, strict=True))
    assert all(torch.equal(after[name], were[name]) for name in parameters)


def test_large_gradients_are_nobodys_mistake():
    """Not even where a scaler is at work elsewhere, on another model."""
    gc.collect()
    other, model = network(), network()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    scaled_step(lesam.LESAM(sgd(other)), scaler, other, next(batches(1, dtype=torch.float32)))
    opt = lesam.LESAM(sgd(model))
    x, y = next(batches(1, dtype=torch.float32))

    def closure() -> Tensor:
        opt.zero_grad()
        loss = 1e5 * nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    opt.step(closure)
    assert opt.steps == 1


def test_torch_refuses_a_closure_with_a_scaler():
    model = network()
    opt, scaler = lesam.LESAM(sgd(model)), torch.amp.GradScaler("cpu")
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        scaler.step(opt, closure=lambda: None)
