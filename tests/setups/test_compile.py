"""``torch.compile`` of the model: the same numbers, one graph, no recompilation by perturbing and restoring."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.utils import counters

import lesam

from ..optim.cases import BASES, ONE_OF_EACH, Case, batches, closure_for, every_method, flat, network
from ..optim.faults import step_once

pytestmark = pytest.mark.xdist_group("processes")  # the compiler starts some


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


@every_method
@pytest.mark.parametrize("style", ["closure", "contexts"])
def test_one_graph_without_breaks_and_the_same_numbers(case: Case, style: str):
    model, other = network(), network()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)  # which makes a graph break an error
    opt, plain = (case.make(BASES["sgd"](m.parameters()), model=m) for m in (compiled, other))
    for batch in batches(6):
        step_once(opt, compiled, batch, style)
        step_once(plain, other, batch, style)
    assert not counters["graph_break"]
    assert graphs() == 1
    torch.testing.assert_close(flat(list(model.parameters())), flat(list(other.parameters())), rtol=1e-9, atol=1e-11)


def test_batch_norm_and_dropout_in_a_compiled_model():
    def build() -> nn.Sequential:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layers = nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Dropout(0.5), nn.Linear(7, 3)
            return nn.Sequential(*layers).double()

    results = []
    for compile_it in (False, True):
        model = build()
        run = torch.compile(model, backend="aot_eager", fullgraph=True) if compile_it else model
        opt = lesam.LESAMPlus(BASES["sgd"](model.parameters()), sigma=0.05, model=run)
        torch.manual_seed(5)
        for batch in batches(6):
            step_once(opt, run, batch)
        results.append(model.state_dict())
    assert graphs() == 1
    assert int(results[1]["1.num_batches_tracked"]) == 6
    for name in results[0]:
        torch.testing.assert_close(results[1][name], results[0][name], rtol=1e-9, atol=1e-11)


# torch 2.6 says so where its compiler has no cache yet.
@pytest.mark.filterwarnings("ignore:Skipping serialization of:UserWarning")
def test_with_the_default_compiler():
    """Inductor: real generated kernels, once."""
    case = next(case for case in ONE_OF_EACH if case.name == "lesamplus")
    model, other = network(), network()
    compiled = torch.compile(model, fullgraph=True)
    opt, plain = (case.make(BASES["sgd"](m.parameters()), model=m) for m in (compiled, other))
    try:
        compiled(next(batches(1))[0])
    except Exception as error:
        if "C++ compiler" in str(error) or "InvalidCxxCompiler" in repr(error):
            pytest.skip("no C++ compiler here")
        raise
    for batch in batches(4):
        step_once(opt, compiled, batch)
        step_once(plain, other, batch)
    assert graphs() == 1
    torch.testing.assert_close(flat(list(model.parameters())), flat(list(other.parameters())), rtol=1e-9, atol=1e-11)


def test_a_compiled_closure_is_refused_by_name():
    model = network()
    opt = lesam.LESAM(BASES["sgd"](model.parameters()))
    closure = torch.compile(closure_for(opt, model, *next(batches(1))), backend="eager")
    with pytest.raises(ValueError, match=r"torch\.compile.*[Cc]ompile the model"):
        opt.step(closure)
    with pytest.raises(ValueError, match=r"torch\.compile"):
        opt.step([closure, closure])


def test_a_compiled_loss_in_a_plain_closure_is_fine():
    model, other = network(), network()
    opt, plain = (lesam.LESAM(BASES["sgd"](m.parameters())) for m in (model, other))

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), y)

    for x, y in batches(4):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            opt.zero_grad()
            loss = loss_of(x, y)
            loss.backward()
            return loss

        opt.step(closure)
        step_once(plain, other, (x, y))
    assert graphs() == 1
    torch.testing.assert_close(flat(list(model.parameters())), flat(list(other.parameters())), rtol=1e-9, atol=1e-11)
