"""FSDP2 (``fully_shard``) with two processes: sharded training equals unsharded, and checkpoints carry over."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import lesam

from .. import needs
from ..optim.cases import BASES, CLOSURES_ONLY, ONE_OF_EACH, Case, batches, closure_for
from .processes import one_at_a_time, together
from .sharing import STEPS, alone, assert_equal_to, micro, numbers, share, shared_batches

pytestmark = [one_at_a_time, needs.fsdp2_on_cpu]

BY_NAME = {
    **{str(case): case for case in ONE_OF_EACH},
    # its random start is drawn shard by shard, so the first refreshes differ unless the iteration converges
    "eigensam": Case("eigensam", {"rho": 0.1, "alpha": 0.3, "every": 100}),
}
CONVERGED = Case("eigensam", {"rho": 0.1, "alpha": 0.3, "every": 3, "iterations": 60})
SEVERAL = ["lesam", "friendlysam"]
REMEMBERING = ["friendlysam", "s2sam", "eigensam", "msam", "lesamplus", "aesam", "onepasslesam", "partiallesam"]
HALF = STEPS // 2
# flattened or not, sharded or gathered; torch cannot load its own SGD's state that is both flattened and gathered
LAYOUTS = [(False, False), (True, False), (False, True)]


def matrices_and_others(parameters: Any) -> list[torch.optim.Optimizer]:
    matrices, others = [], []
    for p in parameters:
        (matrices if p.ndim == 2 else others).append(p)
    return [torch.optim.SGD(matrices, lr=0.05, momentum=0.9), torch.optim.AdamW(others, lr=0.02)]


MAKERS: dict[str, Callable[[Any], Any]] = {**BASES, "several": matrices_and_others}


class Scaled(nn.Module):
    """A learned factor: one number, so that the second process holds nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def network() -> nn.Sequential:
    """Matrices and vectors that do not split evenly, and one that does not split at all."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), Scaled(), nn.Linear(7, 3)).double()


def sharded(mesh: Any = None) -> nn.Sequential:
    model = network()
    for layer in (model[0], model[3], model):
        fully_shard(layer, mesh=mesh)
    return model


def train(opt: Any, model: nn.Module, data: Any) -> None:
    for x, y in data:
        opt.step(closure_for(opt, model, x, y))


# ---------------------------------------------------------------------- scenarios, run in each process


def trained(case: Case, base_name: str = "sgd", shape: tuple[int, int] | None = None, **options: Any) -> dict[str, Any]:
    mesh = None if shape is None else init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    model = sharded(mesh)
    opt = case.make(MAKERS[base_name](model.parameters()), model=model, **options)
    train(opt, model, shared_batches())
    return {"weights": numbers(model), "grad_norm": opt.last.grad_norm, "rho": opt.last.rho}


def in_contexts(case: Case) -> dict[str, Any]:
    model = sharded()
    opt = case.make(BASES["sgd"](model.parameters()))
    for x, y in shared_batches():
        if opt.passes == 2:
            with opt.clean():
                nn.functional.cross_entropy(model(x), y).backward()
        with opt.perturbed():
            nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
    return {"weights": numbers(model)}


def accumulated(case: Case) -> dict[str, Any]:
    model = sharded()
    opt = case.make(BASES["sgd"](model.parameters()), model=model)
    for batch in shared_batches():
        opt.step([closure_for(opt, model, x, y) for x, y in micro(batch, 2)])
    return {"weights": numbers(model)}


def restored(case: Case) -> bool:
    """Whether the shards are back, bit for bit, after a pass that failed far away."""
    model = sharded()
    opt = case.make(BASES["sgd"](model.parameters()), rho=10.0)
    before = [p.to_local().clone() for p in model.parameters()]
    x, y = next(shared_batches(1))
    with opt.clean():
        nn.functional.cross_entropy(model(x), y).backward()
    with pytest.raises(KeyboardInterrupt), opt.perturbed():
        raise KeyboardInterrupt
    return all(torch.equal(a, p.to_local()) for a, p in zip(before, model.parameters(), strict=True))


def resumed(case: Case, base_name: str, flatten: bool, full: bool) -> dict[str, Any]:
    """Stop half-way, save, load into a new model and optimizer, resume; and next to it, never stop."""
    options = StateDictOptions(flatten_optimizer_state_dict=flatten, full_state_dict=full, cpu_offload=full)
    load = StateDictOptions(flatten_optimizer_state_dict=flatten, full_state_dict=full, broadcast_from_rank0=full)
    data = list(shared_batches())
    model = sharded()
    opt = case.make(MAKERS[base_name](model.parameters()))
    train(opt, model, data[:HALF])
    saved = copy.deepcopy(
        (get_model_state_dict(model, options=options), get_optimizer_state_dict(model, opt, options=options))
    )
    kept = copy.deepcopy(saved) if full and not flatten and dist.get_rank() == 0 else None  # loading shards it
    train(opt, model, data[HALF:])
    again = sharded()
    opt_again = case.make(MAKERS[base_name](again.parameters()))
    set_model_state_dict(again, saved[0], options=load)
    set_optimizer_state_dict(again, opt_again, saved[1], options=load)
    steps = opt_again.steps
    train(opt_again, again, data[HALF:])
    return {"straight": numbers(model), "resumed": numbers(again), "steps": steps, "saved": kept}


def through_files(case: Case, folder: Path) -> dict[str, Any]:
    """The same through ``dcp.save`` and ``dcp.load``: each process writes its own shards."""
    place = str(folder / case.name)
    data = list(shared_batches())
    model = sharded()
    opt = case.make(BASES["sgd"](model.parameters()))
    train(opt, model, data[:HALF])
    dcp.save({"model": get_model_state_dict(model), "opt": get_optimizer_state_dict(model, opt)}, checkpoint_id=place)
    train(opt, model, data[HALF:])
    again = sharded()
    opt_again = case.make(BASES["sgd"](again.parameters()))
    state = {"model": get_model_state_dict(again), "opt": get_optimizer_state_dict(again, opt_again)}
    dcp.load(state, checkpoint_id=place)
    set_model_state_dict(again, state["model"])
    set_optimizer_state_dict(again, opt_again, state["opt"])
    train(opt_again, again, data[HALF:])
    return {"straight": numbers(model), "resumed": numbers(again)}


def overflow_in_one_shard(case: Case, in_pass: int) -> dict[str, Any]:
    """An infinite gradient in the rows that one process holds."""
    model = sharded().float()
    opt = case.make(BASES["sgd"](model.parameters()))
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    x, y = share(next(batches(1, dtype=torch.float32)))
    before = numbers(model)
    for number, around in enumerate((opt.clean, opt.perturbed)):
        with around(scaler):
            scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
            if number == in_pass and dist.get_rank() == 1:
                grad = copy.deepcopy(model[0].weight.grad)
                grad.to_local()[0, 0] = float("inf")
                model[0].weight.grad = grad
    scaler.step(opt)
    scaler.update()
    return {"moved": not torch.equal(before, numbers(model)), "scale": scaler.get_scale(), "steps": opt.steps}


def local_is_refused() -> str:
    model = sharded()
    opt = lesam.LESAM(BASES["sgd"](model.parameters()), perturbation="local", model=model)
    x, y = next(shared_batches(1))
    with pytest.raises(RuntimeError) as error:
        opt.step(closure_for(opt, model, x, y))
    return str(error.value)


def scenarios(folder: Path) -> dict[str, Callable[[], Any]]:
    return {
        **{f"trained {name}": partial(trained, case) for name, case in BY_NAME.items()},
        **{
            f"contexts {name}": partial(in_contexts, case)
            for name, case in BY_NAME.items()
            if name not in CLOSURES_ONLY
        },
        **{f"adamw {name}": partial(trained, BY_NAME[name], "adamw") for name in ("lesam", "lesamplus", "msam")},
        "converged": partial(trained, CONVERGED),
        "clipped": partial(trained, BY_NAME["lesamplus"], max_norm=0.1),
        "replicated": partial(trained, BY_NAME["lesam"], shape=(2, 1)),
        "mesh": partial(trained, BY_NAME["lesam"], shape=(1, 2)),
        **{f"accumulated {name}": partial(accumulated, BY_NAME[name]) for name in ("lesam", "lesamplus", "gsam")},
        "restored": partial(restored, BY_NAME["sam"]),
        **{
            f"resumed {name} {base_name} {flatten} {full}": partial(resumed, case, base_name, flatten, full)
            for name, case in _checkpointed().items()
            for base_name in ("sgd", "adamw")
            for flatten, full in LAYOUTS
        },
        **{
            f"resumed {name} several {flatten} {full}": partial(resumed, BY_NAME[name], "several", flatten, full)
            for name in SEVERAL
            for flatten, full in LAYOUTS
        },
        **{f"several {name}": partial(trained, BY_NAME[name], "several") for name in SEVERAL},
        **{f"files {name}": partial(through_files, case, folder) for name, case in _checkpointed().items()},
        "local": local_is_refused,
        **{f"overflow {number}": partial(overflow_in_one_shard, BY_NAME["lesam"], number) for number in (0, 1)},
    }


def _checkpointed() -> dict[str, Case]:
    eigen = Case("eigensam", {"rho": 0.1, "alpha": 0.3, "every": 2, "iterations": 2})
    return {name: eigen if name == "eigensam" else BY_NAME[name] for name in REMEMBERING}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return together("fsdp2", scenarios(tmp_path_factory.mktemp("checkpoints")), tmp_path_factory)


# ---------------------------------------------------------------------- training


@pytest.mark.parametrize("style", ["trained", "contexts"])
@pytest.mark.parametrize("name", BY_NAME)
def test_sharded_equals_unsharded(outcomes: Any, name: str, style: str):
    if style == "contexts" and name in CLOSURES_ONLY:
        pytest.skip("three passes, closures only")
    results = outcomes[f"{style} {name}"]
    assert_equal_to(alone(BY_NAME[name], make_model=network), [result["weights"] for result in results])


@pytest.mark.parametrize("name", ["lesam", "lesamplus", "msam"])
def test_sharded_equals_unsharded_with_adamw(outcomes: Any, name: str):
    expected = alone(BY_NAME[name], "adamw", make_model=network)
    assert_equal_to(expected, [result["weights"] for result in outcomes[f"adamw {name}"]])


def test_the_norm_is_that_of_all_shards(outcomes: Any):
    model = network()
    opt = BY_NAME["lesam"].make(BASES["sgd"](model.parameters()))
    train(opt, model, batches(STEPS))
    for result in outcomes["trained lesam"]:
        torch.testing.assert_close(result["grad_norm"], opt.last.grad_norm, rtol=1e-9, atol=0)
        torch.testing.assert_close(result["rho"], opt.last.rho, rtol=1e-9, atol=0)


def test_a_converged_eigenvector_is_that_of_the_unsharded_model(outcomes: Any):
    expected = alone(CONVERGED, make_model=network)
    for result in outcomes["converged"]:
        torch.testing.assert_close(result["weights"], expected, rtol=1e-4, atol=1e-5)


def test_clipping_uses_the_norm_of_all_shards(outcomes: Any):
    expected = alone(BY_NAME["lesamplus"], make_model=network, max_norm=0.1)
    assert_equal_to(expected, [result["weights"] for result in outcomes["clipped"]])


@needs.hybrid_sharding_on_cpu
@pytest.mark.parametrize("mesh", ["replicated", "mesh"])
def test_hybrid_sharding(outcomes: Any, mesh: str):
    expected = alone(BY_NAME["lesam"], make_model=network)
    assert_equal_to(expected, [result["weights"] for result in outcomes[mesh]])


@pytest.mark.parametrize("name", ["lesam", "lesamplus", "gsam"])
def test_accumulation_equals_the_whole_batch(outcomes: Any, name: str):
    results = outcomes[f"accumulated {name}"]
    assert_equal_to(alone(BY_NAME[name], make_model=network), [result["weights"] for result in results])


def test_shards_come_back_after_an_error(outcomes: Any):
    assert outcomes["restored"] == [True, True]


@pytest.mark.parametrize("in_pass", [0, 1])
def test_an_overflow_in_one_shard_is_a_skip_on_all(outcomes: Any, in_pass: int):
    for result in outcomes[f"overflow {in_pass}"]:
        assert result == {"moved": False, "scale": 8.0, "steps": 0}


def test_a_perturbation_of_ones_own_is_refused(outcomes: Any):
    assert all("FSDP" in message for message in outcomes["local"])


# ---------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize(("flatten", "full"), LAYOUTS, ids=["plain", "flat", "full"])
@pytest.mark.parametrize("base_name", ["sgd", "adamw"])
@pytest.mark.parametrize("name", REMEMBERING)
def test_a_resumed_run_continues_bit_for_bit(outcomes: Any, name: str, base_name: str, flatten: bool, full: bool):
    for result in outcomes[f"resumed {name} {base_name} {flatten} {full}"]:
        assert result["steps"] == HALF
        assert torch.equal(result["straight"], result["resumed"])


@pytest.mark.parametrize(("flatten", "full"), LAYOUTS, ids=["plain", "flat", "full"])
@pytest.mark.parametrize("name", SEVERAL)
def test_a_resumed_run_with_several_bases_continues_bit_for_bit(outcomes: Any, name: str, flatten: bool, full: bool):
    for result in outcomes[f"resumed {name} several {flatten} {full}"]:
        assert result["steps"] == HALF
        assert torch.equal(result["straight"], result["resumed"])


@pytest.mark.parametrize("name", SEVERAL)
def test_several_bases_sharded_equal_unsharded(outcomes: Any, name: str):
    model = network()
    opt = BY_NAME[name].make(matrices_and_others(model.parameters()))
    train(opt, model, batches(STEPS))
    assert_equal_to(numbers(model), [result["weights"] for result in outcomes[f"several {name}"]])


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_run_resumed_from_files_continues_bit_for_bit(outcomes: Any, name: str):
    for result in outcomes[f"files {name}"]:
        assert torch.equal(result["straight"], result["resumed"])


@pytest.mark.parametrize("base_name", ["sgd", "adamw"])
@pytest.mark.parametrize("name", [name for name in REMEMBERING if name != "eigensam"])
def test_a_full_checkpoint_of_two_processes_continues_in_one(outcomes: Any, name: str, base_name: str):
    result = outcomes[f"resumed {name} {base_name} False True"][0]
    weights, state = copy.deepcopy(result["saved"])
    model = network()
    opt = BY_NAME[name].make(BASES[base_name](model.parameters()))
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, weights, options=options)
    set_optimizer_state_dict(model, opt, state, options=options)
    assert opt.steps == HALF
    train(opt, model, list(batches(STEPS))[HALF:])
    torch.testing.assert_close(numbers(model), result["straight"], rtol=1e-9, atol=1e-11)
