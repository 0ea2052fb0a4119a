"""DistributedDataParallel with two processes: what is computed, and what is sent."""

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import lesam

from ..optim.cases import BASES, CLOSURES_ONLY, ONE_OF_EACH, Case, batches, closure_for, network
from ..optim.faults import in_contexts
from ..reference.long_hand import Vector, dot, norm, plus, scaled
from .processes import one_at_a_time, together
from .sharing import STEPS, Batch, alone, assert_equal_to, micro, numbers, share, shared_batches

pytestmark = one_at_a_time

BY_NAME = {str(case): case for case in ONE_OF_EACH}
LOCAL = [
    "sam",
    "asam",
    "friendlysam",
    "gsam",
    "ssam",
    "esam",
    "lesam",
    "lesamplus",
    "aesam",
]  # with an ascent of their own
WRAPPINGS: dict[str, dict[str, Any]] = {
    "bucket view": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "static graph": {"static_graph": True},
    "small buckets": {"bucket_cap_mb": 1e-4},
}


class Counter:
    """A communication hook that counts what it lets through."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.reductions = self.bytes = 0
        ddp.register_comm_hook(self, Counter.hook)

    @staticmethod
    def hook(counter: "Counter", bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        counter.reductions += 1
        counter.bytes += bucket.buffer().numel() * bucket.buffer().element_size()
        return allreduce_hook(None, bucket)


class Halves(nn.Module):
    """A network with a branch that no loss ever uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = network(), network(seed=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def batch_norm_network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3)).double()


# ---------------------------------------------------------------------- scenarios, run in each process


def one_perturbation(
    name: str,
    base_name: str = "sgd",
    style: str = "closure",
    make_model: Callable[[], nn.Module] = network,
    wrapping: dict[str, Any] | None = None,
    tell_model: bool = True,
    **options: Any,
) -> dict[str, Any]:
    model = make_model()
    ddp = DistributedDataParallel(model, **(wrapping or {}))
    counter = Counter(ddp)
    given = {"model": ddp} if tell_model else {}
    opt = BY_NAME[name].make(BASES[base_name](model.parameters()), **given, **options)
    for x, y in shared_batches():
        if style == "closure":
            opt.step(closure_for(opt, ddp, x, y))
            continue
        in_contexts(opt, lambda x=x, y=y: nn.functional.cross_entropy(ddp(x), y).backward())
        opt.step()
    return {"weights": numbers(model), "reductions": counter.reductions, "bytes": counter.bytes, "rho": opt.last.rho}


def on_a_part(style: str, weight: float | None) -> dict[str, Any]:
    """Each process climbs on the first quarter of its half."""
    model = network()
    ddp = DistributedDataParallel(model)
    opt = lesam.PartialLESAM(BASES["sgd"](model.parameters()), sigma=0.05, share=0.25, weight=weight, model=ddp)
    for x, y in shared_batches():
        few = opt.few(len(x))
        partial_step(opt, ddp, (x, y), (x[:few], y[:few]), style)
    return {"weights": numbers(model), "rho": opt.last.rho, "cost": opt.last.cost}


def partial_step(opt: lesam.PartialLESAM, model: nn.Module, whole: Batch, part: Batch, style: str = "closure") -> None:
    share = len(part[0]) / len(whole[0])
    if style == "closure":
        opt.step(closure_for(opt, model, *whole), ascent=closure_for(opt, model, *part), share=share)
        return
    with opt.clean(share=share):
        nn.functional.cross_entropy(model(part[0]), part[1]).backward()
    with opt.perturbed():
        nn.functional.cross_entropy(model(whole[0]), whole[1]).backward()
    opt.step()


def accumulated(name: str, tell_model: bool, perturbation: str, wrapping: dict[str, Any]) -> dict[str, Any]:
    model = network()
    ddp = DistributedDataParallel(model, **wrapping)
    counter = Counter(ddp)
    given = {"model": ddp} if tell_model else {}
    opt = BY_NAME[name].make(BASES["sgd"](model.parameters()), perturbation=perturbation, **given)
    for batch in shared_batches():
        opt.step([closure_for(opt, ddp, x, y) for x, y in micro(batch, 2)])
    return {"weights": numbers(model), "reductions": counter.reductions}


def muon_and_adamw(model: nn.Module) -> list[torch.optim.Optimizer]:
    matrices, others = ([p for p in model.parameters() if (p.ndim == 2) == wanted] for wanted in (True, False))
    muon = getattr(torch.optim, "Muon", partial(torch.optim.SGD, momentum=0.95))  # from torch 2.9 on
    return [muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.02)]


def several_bases(name: str) -> Tensor:
    model = network()
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    opt = BY_NAME[name].make(muon_and_adamw(model), model=ddp)
    for x, y in shared_batches():
        opt.step(closure_for(opt, ddp, x, y))
    return numbers(model)


def zero_redundancy(name: str) -> dict[str, Any]:
    """Halfway the state is saved by one process and loaded by both, into objects made anew."""

    def build() -> tuple[nn.Module, Any, Any]:
        model = network()
        base = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.02, weight_decay=1e-2)
        ddp = DistributedDataParallel(model)
        return ddp, base, BY_NAME[name].make(base, model=ddp)

    ddp, base, opt = build()
    kept = 0
    for number, (x, y) in enumerate(shared_batches()):
        if number == STEPS // 2:
            kept = len(base.optim.state)
            base.consolidate_state_dict(to=0)
            file = io.BytesIO()
            if dist.get_rank() == 0:
                torch.save({"model": ddp.module.state_dict(), "optimizer": opt.state_dict()}, file)
            content = [file.getvalue()]
            dist.broadcast_object_list(content, src=0)
            saved = torch.load(io.BytesIO(content[0]), weights_only=False)
            ddp, base, opt = build()
            ddp.module.load_state_dict(saved["model"])
            opt.load_state_dict(saved["optimizer"])
        opt.step(closure_for(opt, ddp, x, y))
    return {"weights": numbers(ddp), "kept": kept, "parameters": len(list(ddp.parameters()))}


def plain_sgd() -> dict[str, Any]:
    model = network()
    ddp = DistributedDataParallel(model)
    counter, base = Counter(ddp), BASES["sgd"](model.parameters())
    for x, y in shared_batches():
        base.zero_grad()
        nn.functional.cross_entropy(ddp(x), y).backward()
        base.step()
    return {"reductions": counter.reductions, "bytes": counter.bytes}


def statistics(perturbation: str) -> dict[str, Tensor]:
    """Running statistics after one step, and those of one forward on this rank's half."""
    model, plain = batch_norm_network(), batch_norm_network()
    ddp = DistributedDataParallel(model)
    opt = lesam.SAM(BASES["sgd"](model.parameters()), rho=0.5, model=ddp, perturbation=perturbation)
    x, y = next(shared_batches(1))
    plain(x)
    opt.step(closure_for(opt, ddp, x, y))
    return {"found": model[1].running_mean.clone(), "expected": plain[1].running_mean.clone()}


def overflow_on_one_rank(name: str, perturbation: str, in_pass: int) -> dict[str, Any]:
    """An infinite loss on rank 0 alone, in one pass of one step."""
    model = network(dtype=torch.float32)
    ddp = DistributedDataParallel(model)
    opt = BY_NAME[name].make(BASES["sgd"](model.parameters()), model=ddp, perturbation=perturbation)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    before = numbers(model)
    x, y = share(next(batches(1, dtype=torch.float32)))
    for number, around in enumerate((opt.clean, opt.perturbed)):
        with around(scaler):
            loss = nn.functional.cross_entropy(ddp(x), y)
            if number == in_pass and dist.get_rank() == 0:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    return {"moved": not torch.equal(before, numbers(model)), "scale": scaler.get_scale(), "steps": opt.steps}


def local_without_model() -> str:
    model = network()
    ddp = DistributedDataParallel(model)
    opt = lesam.SAM(BASES["sgd"](model.parameters()), perturbation="local")
    x, y = next(shared_batches(1))
    with pytest.raises(RuntimeError) as error:
        opt.step(closure_for(opt, ddp, x, y))
    return str(error.value)


def local_with_a_static_graph() -> str:
    """Torch's reducer fails an assertion if the first backward of a static graph does not communicate."""
    model = network()
    ddp = DistributedDataParallel(model, static_graph=True)
    opt = lesam.SAM(BASES["sgd"](model.parameters()), perturbation="local", model=ddp)
    x, y = next(shared_batches(1))
    with pytest.raises(RuntimeError) as error:
        opt.step(closure_for(opt, ddp, x, y))
    return str(error.value)


def local_after_a_bare_backward() -> str:
    model = network()
    ddp = DistributedDataParallel(model)
    opt = lesam.SAM(BASES["sgd"](model.parameters()), perturbation="local", model=ddp)
    x, y = next(shared_batches(1))
    nn.functional.cross_entropy(ddp(x), y).backward()
    with pytest.raises(RuntimeError) as error, opt.perturbed():
        pass
    return str(error.value)


SCENARIOS: dict[str, Callable[[], Any]] = {
    "plain": plain_sgd,
    **{f"global {name}": partial(one_perturbation, name) for name in BY_NAME},
    **{
        f"contexts {name}": partial(one_perturbation, name, style="contexts")
        for name in BY_NAME
        if name not in ("eigensam", *CLOSURES_ONLY)
    },
    **{f"adamw {name}": partial(one_perturbation, name, "adamw") for name in ("lesam", "lesamplus", "friendlysam")},
    **{f"untold {name}": partial(one_perturbation, name, tell_model=False) for name in ("lesam", "lesamplus")},
    **{
        f"{wrapping} {name}": partial(
            one_perturbation, name, wrapping=options, make_model=Halves if wrapping == "unused" else network
        )
        for wrapping, options in WRAPPINGS.items()
        for name in ("lesam", "lesamplus", "gsam", "esam")
    },
    **{
        f"local {wrapping} {name}": partial(one_perturbation, name, wrapping=options, perturbation="local")
        for wrapping, options in WRAPPINGS.items()
        for name in ("lesam", "lesamplus")
        if wrapping != "static graph"
    },
    "clipped": partial(one_perturbation, "lesamplus", max_norm=0.1),
    **{f"local {name}": partial(one_perturbation, name, perturbation="local") for name in (*LOCAL, "crsam")},
    **{
        f"local contexts {name}": partial(one_perturbation, name, "sgd", "contexts", perturbation="local")
        for name in LOCAL
    },
    **{
        f"accumulated {name} {told} {perturbation}": partial(accumulated, name, told, perturbation, {})
        for name in ("lesam", "lesamplus", "gsam")
        for told in (True, False)
        for perturbation in ("global", "local")
        if told or perturbation == "global"
    },
    **{
        f"accumulated {wrapping} {name}": partial(accumulated, name, True, "global", WRAPPINGS[wrapping])
        for wrapping in ("bucket view", "static graph")
        for name in ("lesam", "lesamplus")
    },
    **{
        f"part {style} {weight}": partial(on_a_part, style, weight)
        for style in ("closure", "contexts")
        for weight in (3.0, None)
    },
    "statistics global": partial(statistics, "global"),
    "statistics local": partial(statistics, "local"),
    **{
        f"overflow {name} {perturbation} {in_pass}": partial(overflow_on_one_rank, name, perturbation, in_pass)
        for name in ("lesam", "lesamplus", "gsam")
        for perturbation in ("global", "local")
        for in_pass in (0, 1)
    },
    **{f"several bases {name}": partial(several_bases, name) for name in ("lesam", "lesamplus", "friendlysam")},
    **{f"zero redundancy {name}": partial(zero_redundancy, name) for name in ("lesam", "lesamplus", "friendlysam")},
    "local without model": local_without_model,
    "local with a static graph": local_with_a_static_graph,
    "local after a bare backward": local_after_a_bare_backward,
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return together("ddp", SCENARIOS, tmp_path_factory)


# ---------------------------------------------------------------------- one perturbation for all


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("style", ["global", "contexts"])
def test_two_processes_equal_one_with_the_whole_batch(outcomes: Any, name: str, style: str):
    if (style, name) == ("contexts", "eigensam"):
        pytest.skip("a loop without closures calls refresh() itself")
    if style == "contexts" and name in CLOSURES_ONLY:
        pytest.skip("three passes, closures only")
    results = outcomes[f"{style} {name}"]
    assert_equal_to(alone(BY_NAME[name]), [result["weights"] for result in results])


@pytest.mark.parametrize("weight", [3.0, None])
@pytest.mark.parametrize("style", ["closure", "contexts"])
def test_two_processes_climb_on_the_parts_of_both(outcomes: Any, style: str, weight: float | None):
    model = network()
    opt = lesam.PartialLESAM(BASES["sgd"](model.parameters()), sigma=0.05, share=0.25, weight=weight)
    part = torch.tensor([0, 1, 8, 9])  # a quarter of each half
    for x, y in batches(STEPS):
        partial_step(opt, model, (x, y), (x[part], y[part]))
    results = outcomes[f"part {style} {weight}"]
    assert_equal_to(numbers(model), [result["weights"] for result in results])
    assert float(results[0]["cost"]) == pytest.approx(1.25)
    assert float(results[0]["rho"]) == pytest.approx(float(opt.last.rho))


@pytest.mark.parametrize("name", ["lesam", "lesamplus", "friendlysam"])
def test_two_processes_equal_one_with_adamw(outcomes: Any, name: str):
    assert_equal_to(alone(BY_NAME[name], "adamw"), [result["weights"] for result in outcomes[f"adamw {name}"]])


@pytest.mark.parametrize("name", ["lesam", "lesamplus"])
def test_the_model_need_not_be_given(outcomes: Any, name: str):
    assert_equal_to(alone(BY_NAME[name]), [result["weights"] for result in outcomes[f"untold {name}"]])


@pytest.mark.parametrize("name", ["lesam", "lesamplus", "gsam", "esam"])
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_every_way_of_wrapping(outcomes: Any, wrapping: str, name: str):
    expected = alone(BY_NAME[name], make_model=Halves if wrapping == "unused" else network)
    assert_equal_to(expected, [result["weights"] for result in outcomes[f"{wrapping} {name}"]])


@pytest.mark.parametrize("name", ["lesam", "lesamplus", "friendlysam"])
def test_several_bases(outcomes: Any, name: str):
    model = network()
    opt = BY_NAME[name].make(muon_and_adamw(model))
    for x, y in batches(STEPS):
        opt.step(closure_for(opt, model, x, y))
    assert_equal_to(numbers(model), outcomes[f"several bases {name}"])


@pytest.mark.parametrize("name", ["lesam", "lesamplus", "friendlysam"])
def test_states_spread_over_processes(outcomes: Any, name: str):
    """ZeroRedundancyOptimizer: the run of one process with AdamW, saved and resumed halfway."""
    results = outcomes[f"zero redundancy {name}"]
    assert_equal_to(alone(BY_NAME[name], "adamw"), [result["weights"] for result in results])
    assert sum(result["kept"] for result in results) == results[0]["parameters"]
    assert all(result["kept"] > 0 for result in results), "each process keeps the states of some parameters"


def test_clipping_is_of_the_combined_gradient(outcomes: Any):
    expected = alone(BY_NAME["lesamplus"], max_norm=0.1)
    assert (expected - alone(BY_NAME["lesamplus"])).abs().max() > 1e-3
    assert_equal_to(expected, [result["weights"] for result in outcomes["clipped"]])


# ---------------------------------------------------------------------- one perturbation for each worker


class Worker:
    """One worker of the long-hand formula: its own ascent, the shared weights."""

    def __init__(self, case: Case, model: nn.Module) -> None:
        self.case, self.model, self.parameters = case, model, list(model.parameters())
        self.average: Vector | None = None

    def gradient(self, batch: Batch) -> Vector:
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        return list(torch.autograd.grad(loss, self.parameters))

    def contribution(self, batch: Batch, step: int) -> Vector:
        """This worker's ``a g_hat + b g``, to be averaged over workers."""
        options, name = self.case.options, self.case.name
        g = self.gradient(batch)
        u = g
        if name == "friendlysam":
            u = g if self.average is None else plus(g, scaled(-options["weight"], self.average))
            keep = options["decay"]
            self.average = g if self.average is None else plus(scaled(keep, self.average), scaled(1 - keep, g))
        if name == "asam":
            size = [w.detach().abs() + 0.01 if w.ndim > 1 else torch.ones_like(w) for w in self.parameters]
            length = norm([t * v for t, v in zip(size, u, strict=True)])
            eps_hat = scaled(1 / length, [t * t * v for t, v in zip(size, u, strict=True)])
        elif name == "esam":
            mask = lesam.RandomSubset(options["beta"]).mask(len(u), step)
            u = [v if taken else torch.zeros_like(v) for v, taken in zip(u, mask, strict=True)]
            eps_hat = scaled(1 / options["beta"] / norm(u), u)
        else:
            eps_hat = scaled(1 / norm(u), u)
        rho = min(options["sigma"] / norm(g), options["rho_max"]) if "sigma" in options else options["rho"]
        with torch.no_grad():
            backup = [w.clone() for w in self.parameters]
            for w, e in zip(self.parameters, eps_hat, strict=True):
                w.add_(e, alpha=rho)
        g_hat = self.gradient(batch)
        with torch.no_grad():
            for w, old in zip(self.parameters, backup, strict=True):
                w.copy_(old)
        if name == "lesamplus":
            return plus(scaled(1 + options["alpha"], g_hat), scaled(-options["alpha"], g))
        if name == "crsam":
            with torch.no_grad():
                for w, e in zip(self.parameters, eps_hat, strict=True):
                    w.sub_(e, alpha=rho)
            g_minus, alpha, beta = self.gradient(batch), options["alpha"], options["beta"]
            with torch.no_grad():
                for w, old in zip(self.parameters, backup, strict=True):
                    w.copy_(old)
            g_hat = scaled(1 + alpha + beta, g_hat)
            return plus(plus(g_hat, scaled(alpha - beta, g_minus)), scaled(-2 * alpha, g))
        if name == "ssam":
            return scaled(norm(g) / norm(g_hat), g_hat)
        if name == "gsam":
            along = dot(g, g_hat) / dot(g_hat, g_hat)
            return plus(scaled(1 + options["alpha"] * along, g_hat), scaled(-options["alpha"], g))
        return g_hat


def long_hand(case: Case, number: int = 2, cut: Callable[[Batch], list[Batch]] | None = None) -> Tensor:
    """Training with this number of workers, in one process."""
    model = network()
    base = BASES["sgd"](model.parameters())
    workers, mean, variance = [Worker(case, model) for _ in range(number)], 0.0, 0.0
    for step, batch in enumerate(batches(STEPS)):
        parts = micro(batch, number) if cut is None else cut(batch)
        climbs = True
        if case.name == "aesam":  # all decide alike, by the mean of their squared norms
            own = [norm(worker.gradient(part)) ** 2 for worker, part in zip(workers, parts, strict=True)]
            square, delta = sum(own) / number, case.options["decay"]
            mean = delta * mean + (1 - delta) * square
            variance = delta * variance + (1 - delta) * (square - mean) ** 2
            climbs = square >= mean + case.options["threshold"] * variance**0.5
        given = [
            worker.contribution(part, step) if climbs else worker.gradient(part)
            for worker, part in zip(workers, parts, strict=True)
        ]
        for index, w in enumerate(model.parameters()):
            w.grad = torch.stack([contribution[index] for contribution in given]).mean(0)
        base.step()
    return numbers(model)


@pytest.mark.parametrize("style", ["local", "local contexts"])
@pytest.mark.parametrize("name", LOCAL)
def test_local_perturbation_equals_the_long_hand_formula(outcomes: Any, name: str, style: str):
    results = outcomes[f"{style} {name}"]
    assert_equal_to(long_hand(BY_NAME[name]), [result["weights"] for result in results])


def test_three_passes_with_a_perturbation_of_each_worker(outcomes: Any):
    results = outcomes["local crsam"]
    assert_equal_to(long_hand(BY_NAME["crsam"]), [result["weights"] for result in results])


@pytest.mark.parametrize("name", ["lesam", "lesamplus"])
@pytest.mark.parametrize("wrapping", sorted(set(WRAPPINGS) - {"static graph"}))
def test_local_perturbation_in_every_way_of_wrapping(outcomes: Any, wrapping: str, name: str):
    results = outcomes[f"local {wrapping} {name}"]
    assert_equal_to(long_hand(BY_NAME[name]), [result["weights"] for result in results])


def test_local_differs_from_global_and_between_workers(outcomes: Any):
    assert (long_hand(BY_NAME["lesam"]) - alone(BY_NAME["lesam"])).abs().max() > 1e-4
    mine, other = (result["rho"] for result in outcomes["local lesam"])
    assert mine != other


# ---------------------------------------------------------------------- what is sent


SENT = [  # CR-SAM's third pass takes the second along
    *(("lesam", "global", 2), ("lesam", "local", 1), ("msam", "global", 1), ("crsam", "global", 2)),
    ("crsam", "local", 1),
]


def test_local_saves_one_reduction(outcomes: Any):
    sgd = outcomes["plain"][0]
    assert sgd["reductions"] == STEPS
    for name, perturbation, factor in SENT:
        sent = outcomes[f"{perturbation} {name}"][0]
        assert sent["reductions"] == factor * sgd["reductions"]
        assert sent["bytes"] == factor * sgd["bytes"]
    for name in ("lesamplus", "gsam", "ssam", "friendlysam"):
        assert outcomes[f"local {name}"][0]["reductions"] <= STEPS


@pytest.mark.parametrize("name", ["lesam", "lesamplus", "gsam"])
@pytest.mark.parametrize("told", [True, False])
def test_accumulation_equals_the_whole_batch(outcomes: Any, name: str, told: bool):
    results = outcomes[f"accumulated {name} {told} global"]
    assert_equal_to(alone(BY_NAME[name]), [result["weights"] for result in results])
    passes = 2 * STEPS  # told of the model, only the last backward of a pass communicates
    assert results[0]["reductions"] == (passes if told else 2 * passes)


@pytest.mark.parametrize("name", ["lesam", "lesamplus"])
@pytest.mark.parametrize("wrapping", ["bucket view", "static graph"])
def test_accumulation_in_other_ways_of_wrapping(outcomes: Any, wrapping: str, name: str):
    results = outcomes[f"accumulated {wrapping} {name}"]
    assert_equal_to(alone(BY_NAME[name]), [result["weights"] for result in results])


@pytest.mark.parametrize("name", ["lesam", "lesamplus", "gsam"])
def test_local_accumulation_has_a_perturbation_for_each_worker_and_micro_batch(outcomes: Any, name: str):
    results = outcomes[f"accumulated {name} True local"]
    assert_equal_to(long_hand(BY_NAME[name], number=4), [result["weights"] for result in results])


# ---------------------------------------------------------------------- around it


@pytest.mark.parametrize("perturbation", ["global", "local"])
def test_batch_norm_statistics_follow_the_clean_pass(outcomes: Any, perturbation: str):
    for result in outcomes[f"statistics {perturbation}"]:
        torch.testing.assert_close(result["found"], result["expected"])


@pytest.mark.parametrize("name", ["lesam", "lesamplus", "gsam"])
@pytest.mark.parametrize("perturbation", ["global", "local"])
@pytest.mark.parametrize("in_pass", [0, 1])
def test_an_overflow_on_one_rank_is_a_skip_on_all(outcomes: Any, name: str, perturbation: str, in_pass: int):
    for result in outcomes[f"overflow {name} {perturbation} {in_pass}"]:
        assert result == {"moved": False, "scale": 8.0, "steps": 0}


def test_local_perturbation_that_cannot_work_is_refused(outcomes: Any):
    assert all("model=" in message for message in outcomes["local without model"])
    assert all("static_graph" in message for message in outcomes["local with a static graph"])
    assert all("clean()" in message for message in outcomes["local after a bare backward"])
