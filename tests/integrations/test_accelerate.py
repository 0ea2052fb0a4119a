"""Accelerate's wrapper around a sharpness-aware optimizer: both calling styles equal the plain loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from torch.nn import functional as F

from .problems import METHODS, assert_resumes, assert_same, data, network, optimizer, train, windows

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def accelerator(request: pytest.FixtureRequest) -> Any:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    yield Accelerator(cpu=True, **getattr(request, "param", {}))
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.mark.parametrize("name", ["lesam", "lesamplus", "friendlysam", "s2sam"])
def test_closures(accelerator: Accelerator, name: str) -> None:
    network_, plain = network(), network()
    model, opt = accelerator.prepare(network_, optimizer(name, network_))
    torch.manual_seed(2)
    for x, y in data(5):

        def closure(x: Any = x, y: Any = y) -> torch.Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            return loss

        opt.step(closure)
    train(optimizer(name, plain), plain, windows(data(5), 1))
    assert_same(network_, plain, rtol=1e-12, atol=1e-12)


THREE = pytest.mark.parametrize("accelerator", [{"gradient_accumulation_steps": 3}], indirect=True)


@THREE
@pytest.mark.parametrize("name", [name for name in METHODS if name != "eigensam"])
def test_accumulation_in_contexts(accelerator: Accelerator, name: str) -> None:
    """``opt.optimizer`` is the one with the passes. ``accelerator.backward`` divides by a number that can be set."""
    network_, plain = network(), network()
    model, opt = accelerator.prepare(network_, optimizer(name, network_))
    torch.manual_seed(2)
    for window in windows(data(7), 3):  # the last one has a single micro-batch
        accelerator.gradient_accumulation_steps = len(window)
        passes = [opt.optimizer.clean] if opt.optimizer.passes == 2 else []
        for one_pass in [*passes, opt.optimizer.perturbed]:
            with one_pass():
                for x, y in window:
                    with accelerator.accumulate(model):
                        accelerator.backward(F.cross_entropy(model(x), y))
        accelerator.clip_grad_norm_(model.parameters(), 0.3)
        opt.step()
    train(optimizer(name, plain, max_norm=0.3), plain, windows(data(7), 3))
    assert_same(network_, plain, rtol=1e-6, atol=1e-9)


def test_accumulation_with_closures(accelerator: Accelerator) -> None:
    """One for each micro-batch, and nothing of Accelerate's own accumulation."""
    network_, plain = network(), network()
    model, opt = accelerator.prepare(network_, optimizer("lesamplus", network_))
    torch.manual_seed(2)
    for window in windows(data(7), 3):

        def closure(x: Any, y: Any) -> torch.Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            return loss

        opt.step([partial(closure, x, y) for x, y in window])
    train(optimizer("lesamplus", plain), plain, windows(data(7), 3))
    assert_same(network_, plain, rtol=1e-12, atol=1e-12)


@THREE
@pytest.mark.parametrize("scheduled", [False, True])
def test_a_closure_of_the_last_micro_batch_is_refused(accelerator: Accelerator, scheduled: bool) -> None:
    """Accelerate would call it for one micro-batch of three, on a third of its loss."""
    network_ = network()
    inner = optimizer("lesam", network_)
    model, opt = accelerator.prepare(network_, inner)
    if scheduled:
        torch.optim.lr_scheduler.ConstantLR(inner)  # puts a wrapper of its own around step()
    before = {name: value.clone() for name, value in network_.state_dict().items()}

    def closure(x: Any, y: Any) -> torch.Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        return loss

    def one_window() -> None:
        for x, y in data(3):
            with accelerator.accumulate(model):
                opt.step(partial(closure, x, y))

    with pytest.raises(RuntimeError, match=r"gradient_accumulation_steps=3.*opt\.optimizer\.perturbed.*one closure"):
        one_window()
    for name, value in network_.state_dict().items():
        assert torch.equal(value, before[name])


@THREE
def test_an_optimizer_that_accelerate_knows_nothing_of_is_not_refused(accelerator: Accelerator) -> None:
    """Though there is an Accelerator with accumulation in the process, and it prepares another one."""
    other = network()
    accelerator.prepare(other, optimizer("lesam", other))
    model, plain = network(), network()
    train(optimizer("lesam", model), model, windows(data(4), 2))
    train(optimizer("lesam", plain), plain, windows(data(4), 2))
    assert_same(model, plain, rtol=0, atol=0)


@pytest.mark.parametrize("overflow", ["first", "second"])
def test_a_skipped_step_is_told_and_the_schedule_waits(accelerator: Accelerator, overflow: str) -> None:
    """As with a bare SGD whose loss overflows at the same step."""

    def run(opt: Any, one_step: Callable[[float], None]) -> list[tuple[bool, float]]:
        wrapped = AcceleratedOptimizer(opt, scaler=scaler)
        scheduler = AcceleratedScheduler(torch.optim.lr_scheduler.ExponentialLR(opt, 0.5), wrapped)
        seen = []
        for factor in (1.0, float("inf"), 1.0):
            one_step(factor)
            wrapped.step()
            scheduler.step()
            seen.append((wrapped.step_was_skipped, opt.param_groups[0]["lr"]))
        return seen

    network_, bare, (batch,) = network(torch.float32), network(torch.float32), data(1, dtype=torch.float32)
    opt, sgd = optimizer("lesamplus", network_), torch.optim.SGD(bare.parameters(), lr=0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def two_passes(factor: float) -> None:
        for which, one_pass in (("first", opt.clean), ("second", opt.perturbed)):
            with one_pass(scaler):
                loss = F.cross_entropy(network_(batch[0]), batch[1])
                scaler.scale(loss * (factor if which == overflow else 1.0)).backward()

    def one_pass(factor: float) -> None:
        sgd.zero_grad()
        scaler.scale(F.cross_entropy(bare(batch[0]), batch[1]) * factor).backward()

    assert run(opt, two_passes) == run(sgd, one_pass) == [(False, 0.1), (True, 0.1), (False, 0.05)]
    assert opt.steps == 2


@pytest.mark.parametrize("name", ["lesam", "lesamplus", "gsam"])
def test_scaler(accelerator: Accelerator, name: str) -> None:
    """The wrapper as it is under fp16, where it steps through a loss scaler; on a machine without half precision."""
    network_, plain, batches = network(torch.float32), network(torch.float32), data(5, dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    opt = AcceleratedOptimizer(optimizer(name, network_), scaler=scaler)
    torch.manual_seed(2)
    for x, y in batches:
        for one_pass in (opt.optimizer.clean, opt.optimizer.perturbed):
            with one_pass(scaler):
                scaler.scale(F.cross_entropy(network_(x), y)).backward()
        opt.step()
    train(optimizer(name, plain), plain, windows(batches, 1))
    assert_same(network_, plain, rtol=1e-4, atol=1e-5)


def test_save_state_and_load_state_continue_bit_for_bit(accelerator: Accelerator, tmp_path: Path) -> None:
    def run(network_: nn.Module, part: str, begin: Callable[[], None]) -> None:
        batches = data(6)
        model, opt = accelerator.prepare(network_, optimizer("friendlysam", network_))
        if part == "second":
            accelerator.load_state(str(tmp_path))
        begin()
        for x, y in {"whole": batches, "first": batches[:3], "second": batches[3:]}[part]:
            for one_pass in (opt.optimizer.clean, opt.optimizer.perturbed):
                with one_pass():
                    accelerator.backward(F.cross_entropy(model(x), y))
            opt.step()
        if part == "first":
            accelerator.save_state(str(tmp_path))
        accelerator.free_memory()

    assert_resumes(network, run)
