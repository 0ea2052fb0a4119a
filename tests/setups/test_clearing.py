"""However gradients are cleared, on several workers as on one: right numbers.

One table: every method x every way of clearing x one closure or micro-batches x every way of wrapping a model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import lesam

from .. import needs
from ..optim.cases import BASES, ONE_OF_EACH, Case, batches, closure_for, network
from ..optim.clearing import CLEARINGS, Clearing, by_opt, clearing_closure, clipping_closure, refusal_of
from .processes import one_at_a_time, together
from .sharing import micro, numbers, share, shared_batches

pytestmark = one_at_a_time

STEPS = 2
# Those left out make the passes of another and add up the same gradients: of sam, friendlysam and s2sam.
ALIKE = ("asam", "fishersam", "vasso", "emasam")
BY_NAME = {str(case): case for case in ONE_OF_EACH if case.name not in ALIKE}
BY_NAME["eigensam"] = Case("eigensam", {"rho": 0.1, "alpha": 0.3, "every": 100})  # FSDP2 starts it shard by shard


class Used(nn.Module):
    """A network with a branch that no loss ever uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = network(), nn.Linear(2, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def sharded(model: nn.Sequential) -> nn.Module:
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    return model


WRAPPINGS: dict[str, Callable[[], nn.Module]] = {
    "a group": network,  # no wrapper: each process trains alone, on the whole batch
    "DDP": lambda: DistributedDataParallel(network()),
    "bucket views": lambda: DistributedDataParallel(network(), gradient_as_bucket_view=True),
    "unused parameters": lambda: DistributedDataParallel(Used(), find_unused_parameters=True),
    "FSDP2": lambda: sharded(network()),
}

if needs.fsdp2_on_cpu.args[0]:
    del WRAPPINGS["FSDP2"]
WRAPPED = [wrapping for wrapping in WRAPPINGS if wrapping != "a group"]
BOTH = [(True, False)] * 2


# ---------------------------------------------------------------------- scenarios, run in each process


@cache
def expected(name: str) -> Tensor:
    """What one process without any group reaches on the whole batches."""
    model = network()
    opt = BY_NAME[name].make(BASES["sgd"](model.parameters()))
    for x, y in batches(STEPS):
        opt.step(closure_for(opt, model, x, y))
    return numbers(model)


def trained(name: str, wrapping: str, clear: Clearing, parts: int, told: bool) -> float:
    model = WRAPPINGS[wrapping]()
    opt = BY_NAME[name].make(BASES["sgd"](model.parameters()), model=model if told else None)
    for batch in batches(STEPS) if wrapping == "a group" else shared_batches(STEPS):
        closures = [clearing_closure(opt, model, x, y, clear) for x, y in micro(batch, parts)]
        opt.step(closures if parts > 1 else closures[0])
    found = numbers(model.module.used if wrapping == "unused parameters" else model)
    return float((found - expected(name)).abs().max())


def table(name: str, wrapping: str) -> dict[tuple[str, int], float]:
    """The largest deviation, by way of clearing and number of micro-batches."""
    return {
        (clear.__name__, parts): trained(name, wrapping, clear, parts, told=(index + parts) % 2 == 0)
        for index, clear in enumerate(CLEARINGS)
        for parts in (1, 2)
    }


def clipped(name: str, wrapping: str, style: str) -> dict[str, Any]:
    """The words of the refusal, and whether the weights are where they were."""
    model = WRAPPINGS[wrapping]()
    opt = BY_NAME[name].make(BASES["sgd"](model.parameters()))
    before = numbers(model)
    closure = clipping_closure(opt, model, *share(next(batches(1))), 0.01)
    words = refusal_of(opt.step, closure if style == "one closure" else [closure, closure])
    return {"words": words, "moved": not torch.equal(before, numbers(model))}


def bare_backward_without_clearing(wrapping: str) -> str | None:
    """The second step's first pass is added to the first step's gradient."""
    model = WRAPPINGS[wrapping]()
    opt = lesam.SAM(BASES["sgd"](model.parameters()))

    def step(x: Tensor, y: Tensor) -> None:
        nn.functional.cross_entropy(model(x), y).backward()
        with opt.perturbed():
            nn.functional.cross_entropy(model(x), y).backward()
        opt.step()

    first, second = shared_batches(2)
    step(*first)
    return refusal_of(step, *second)


def left_by_somebody_else(wrapping: str) -> str | None:
    model = WRAPPINGS[wrapping]()
    opt = lesam.LESAM(BASES["sgd"](model.parameters()))
    x, y = share(next(batches(1)))
    nn.functional.cross_entropy(model(x), y).backward()
    return refusal_of(opt.step, clearing_closure(opt, model, x, y, CLEARINGS[0]))


def closure_for_hooks_only(wrapping: str) -> float:
    """A closure given when the combined gradient is ready is called, and that gradient survives it."""
    model = WRAPPINGS[wrapping]()
    opt = BY_NAME["lesamplus"].make(BASES["sgd"](model.parameters()), model=model)
    for x, y in shared_batches(STEPS):
        for around in (opt.clean, opt.perturbed):
            with around():
                nn.functional.cross_entropy(model(x), y).backward()
        opt.step(clearing_closure(opt, model, x, y, by_opt))
    found = numbers(model.module.used if wrapping == "unused parameters" else model)
    return float((found - expected("lesamplus")).abs().max())


def flattened(use_orig_params: bool, given: bool) -> str | None:
    """FSDP1, over which a norm would be that of a shard."""
    model = FullyShardedDataParallel(
        copy.deepcopy(network()).float(), use_orig_params=use_orig_params, device_id=torch.device("cpu")
    )
    return refusal_of(lambda: lesam.LESAM(BASES["sgd"](model.parameters()), model=model if given else None))


SCENARIOS: dict[str, Callable[[], Any]] = {
    **{f"{wrapping} {name}": partial(table, name, wrapping) for wrapping in WRAPPINGS for name in BY_NAME},
    **{
        f"clipped {wrapping} {name} {style}": partial(clipped, name, wrapping, style)
        for wrapping in WRAPPINGS
        for name in ("lesam", "lesamplus")
        for style in ("one closure", "micro-batches")
    },
    **{f"bare {wrapping}": partial(bare_backward_without_clearing, wrapping) for wrapping in WRAPPINGS},
    **{f"left {wrapping}": partial(left_by_somebody_else, wrapping) for wrapping in WRAPPINGS},
    **{
        f"hooks {wrapping}": partial(closure_for_hooks_only, wrapping)
        for wrapping in WRAPPINGS
        if wrapping != "a group"
    },
    **{
        f"flattened {orig} {given}": partial(flattened, orig, given)
        for orig in (True, False)
        for given in (True, False)
    },
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return together("clearing", SCENARIOS, tmp_path_factory)


# ---------------------------------------------------------------------- what came out


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_however_gradients_are_cleared_the_numbers_are_right(outcomes: Any, wrapping: str, name: str):
    for rank in outcomes[f"{wrapping} {name}"]:
        wrong = {way: deviation for way, deviation in rank.items() if not deviation < 1e-9}
        assert not wrong


@pytest.mark.parametrize("style", ["one closure", "micro-batches"])
@pytest.mark.parametrize("name", ["lesam", "lesamplus"])
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_clipping_in_a_closure_is_refused(outcomes: Any, wrapping: str, name: str, style: str):
    for rank in outcomes[f"clipped {wrapping} {name} {style}"]:
        assert "max_norm=" in (rank["words"] or "")
        assert not rank["moved"]


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_bare_backward_on_top_of_the_last_steps_gradient_is_refused(outcomes: Any, wrapping: str):
    assert all("opt.zero_grad()" in (words or "") for words in outcomes[f"bare {wrapping}"])


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_gradients_of_somebody_else_that_nobody_clears_are_refused(outcomes: Any, wrapping: str):
    assert all("opt.zero_grad()" in (words or "") for words in outcomes[f"left {wrapping}"])


@pytest.mark.parametrize("wrapping", WRAPPED)
def test_a_closure_called_for_its_hooks_leaves_the_combined_gradient(outcomes: Any, wrapping: str):
    assert all(deviation < 1e-9 for deviation in outcomes[f"hooks {wrapping}"])


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("original", [True, False])
def test_fsdp1_is_refused_by_name(outcomes: Any, original: bool, given: bool):
    for words in outcomes[f"flattened {original} {given}"]:
        assert "FullyShardedDataParallel" in (words or "")
        assert "fully_shard" in words


def test_the_table_is_run_in_a_group(outcomes: Any):
    """The processes of this table have a process group, in which no check may be off."""
    assert not dist.is_initialized()
    assert len(outcomes["a group sam"]) == 2
