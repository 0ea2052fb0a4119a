"""Steps that can be made to fail, and comparison down to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lesam

both_styles = pytest.mark.parametrize("style", ["closure", "contexts"])

INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


def bits(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copies as integers: -0.0 is not 0.0 here, and NaN equals itself."""
    return [t.detach().clone().contiguous().view(INTEGERS[t.element_size()]) for t in tensors]


def same_bits(a: Iterable[Tensor], b: Iterable[Tensor]) -> bool:
    """Whether two lists of tensors are equal to the last bit."""
    a, b = list(a), list(b)
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def model_bits(model: nn.Module) -> list[Tensor]:
    """Parameters and buffers."""
    return bits(model.state_dict().values())


def assert_same_state(a: Any, b: Any, path: str = "state") -> None:
    """Two state dicts are equal, tensors bit for bit."""
    assert type(a) is type(b), f"{path}: {type(a)} and {type(b)}"
    if isinstance(a, dict):
        assert set(a) == set(b), path
        for key in a:
            assert_same_state(a[key], b[key], f"{path}[{key!r}]")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same_state(x, y, f"{path}[{index}]")
    elif isinstance(a, Tensor):
        assert a.dtype == b.dtype, f"{path}: {a.dtype} and {b.dtype}"
        assert same_bits(bits([a]), bits([b])), path
    else:
        assert a == b, f"{path}: {a!r} and {b!r}"


@dataclass
class Fault:
    """An error in the ``call``-th pass of a step, before or after its backward."""

    error: type[BaseException]
    call: int = 0
    after_backward: bool = True

    def trip(self, call: int, after_backward: bool) -> None:
        if call == self.call and after_backward == self.after_backward:
            raise self.error("on purpose")


def batch_norm_network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A small net with running statistics."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def passes_of(opt: lesam.SharpnessAware) -> dict[str, int]:
    """The number of the call in which each part of the coming step runs."""
    direction = opt.parts.direction
    extra = 2 * direction.iterations if direction.refresh_due(opt.steps) else 0
    places = {"first": extra, "second": extra + opt.passes - 1}
    return places | ({"refresh": 1} if extra else {})


def in_contexts(opt: lesam.SharpnessAware, run_pass: Callable[[], Any]) -> None:
    """The passes of a step without a closure, the same function for each."""
    clean = opt.passes == 2
    if clean:
        with opt.clean():
            run_pass()
    if not clean or opt.passes == 2:  # else a gate has decided that one pass is enough
        with opt.perturbed():
            run_pass()


def step_once(
    opt: lesam.SharpnessAware,
    model: nn.Module,
    batch: tuple[Tensor, Tensor],
    style: str = "closure",
    fault: Fault | None = None,
    refresh: bool = True,
) -> None:
    """One step in either style, with a fault in it if one is given."""
    x, y = batch
    calls = 0

    def run_pass() -> Tensor:
        nonlocal calls
        call, calls = calls, calls + 1
        loss = nn.functional.cross_entropy(model(x).double(), y)
        if fault is not None:
            fault.trip(call, after_backward=False)
        loss.backward()
        if fault is not None:
            fault.trip(call, after_backward=True)
        return loss

    def closure() -> Tensor:
        opt.zero_grad()
        return run_pass()

    if style == "closure" or opt.passes > 2:
        opt.step(closure)
        return
    if opt.parts.direction.refresh_due(opt.steps):
        if refresh:
            opt.refresh(closure)
        else:
            calls = 2 * opt.parts.direction.iterations
    in_contexts(opt, run_pass)
    opt.step()


def step_in_style(opt: lesam.SharpnessAware, run_pass: Callable[[], Any], style: str) -> None:
    """One step with the same function for each pass."""
    if style == "closure" or opt.passes > 2:
        opt.step(run_pass)
        return
    in_contexts(opt, run_pass)
    opt.step()
