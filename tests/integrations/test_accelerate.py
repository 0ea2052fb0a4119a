"""Accelerate's wrapper around a sharpness-aware optimizer: both calling styles equal the plain loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
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


@pytest.mark.parametrize("accelerator", [{"gradient_accumulation_steps": 3}], indirect=True)
@pytest.mark.parametrize("name", [name for name in METHODS if name != "eigensam"])
def test_accumulation_in_contexts(accelerator: Accelerator, name: str) -> None:
    """``accelerator.backward`` divides by three; ``opt.optimizer`` is the one with the passes."""
    network_, plain = network(), network()
    model, opt = accelerator.prepare(network_, optimizer(name, network_))
    torch.manual_seed(2)
    for window in windows(data(6), 3):
        passes = [opt.optimizer.clean] if opt.optimizer.passes == 2 else []
        for one_pass in [*passes, opt.optimizer.perturbed]:
            with one_pass():
                for x, y in window:
                    with accelerator.accumulate(model):
                        accelerator.backward(F.cross_entropy(model(x), y))
        accelerator.clip_grad_norm_(model.parameters(), 0.3)
        opt.step()
    train(optimizer(name, plain, max_norm=0.3), plain, windows(data(6), 3))
    assert_same(network_, plain, rtol=1e-6, atol=1e-9)


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
