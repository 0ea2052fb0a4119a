"""Two processes: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import datetime
import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .outcome import BrokenPromiseError, Measured, NotApplicableError, first_line
from .subjects import batches, difference, make, plain_step, seeded, sgd, step, weights

WORLD = 2
SECONDS = 120.0
METHODS = ("lesam", "lesamplus")
STEPS = 4


def ddp(device: torch.device) -> Measured:
    """Two processes under DDP equal one process on the whole batch."""
    return _compared(device, nn.parallel.DistributedDataParallel)


def fsdp2(device: torch.device) -> Measured:
    """Two processes that share the weights equal one that holds them all."""
    return _compared(device, _sharded)


def _sharded(model: nn.Sequential) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(model.parameters()).device.type, (WORLD,))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    return model


def _network(device: torch.device) -> nn.Sequential:
    """Without BatchNorm, whose statistics are those of a process."""
    return seeded(lambda: nn.Sequential(nn.Linear(8, 15), nn.Tanh(), nn.Linear(15, 4)), device, torch.float64)


def _compared(device: torch.device, wrap: Callable[..., nn.Module]) -> Measured:
    if device.type not in ("cpu", "cuda"):
        raise NotApplicableError("written for gloo on CPUs and NCCL on GPUs")
    if device.type == "cuda" and torch.cuda.device_count() < WORLD:
        raise NotApplicableError(f"NCCL needs {WORLD} GPUs, here is {torch.cuda.device_count()}")
    if not dist.is_available():
        raise NotApplicableError("this torch was built without torch.distributed")
    worst = 0.0
    for name, found in _together(device.type, wrap).items():
        model = _network(device)
        opt = make(name, sgd(model))
        for batch in batches(device, STEPS, torch.float64):
            step(opt, model, batch)
        if not torch.equal(found[0], found[1]):
            raise BrokenPromiseError(f"{name}: the processes have drifted apart")
        off = difference(found[0], weights(model))
        if not off <= 1e-9:
            raise BrokenPromiseError(
                f"{name}: the weights differ by {off:.2g} of the largest from those of one process"
            )
        worst = max(worst, off)
    return Measured(worst, f"largest relative difference ({'gloo' if device.type == 'cpu' else 'NCCL'})")


def _together(kind: str, wrap: Callable[..., nn.Module]) -> dict[str, list[Any]]:
    """The weights that each process reaches with each method."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        workers = [context.Process(target=_work, args=(rank, kind, wrap, folder), daemon=True) for rank in range(WORLD)]
        run_together(workers, SECONDS)
        answers = [Path(folder) / f"{rank}.pt" for rank in range(WORLD)]
        if not all(answer.exists() for answer in answers):
            codes = ", ".join(str(worker.exitcode) for worker in workers)
            raise BrokenPromiseError(f"no answer from the processes within {SECONDS:g} s (exit codes {codes})")
        results = [torch.load(answer, weights_only=True) for answer in answers]
    for result in results:
        if "cannot" in result:
            raise NotApplicableError(result["cannot"])
        if "error" in result:
            raise BrokenPromiseError(result["error"])
    return {name: [result[name] for result in results] for name in METHODS}


def run_together(workers: Sequence[BaseProcess], seconds: float) -> None:
    """Start processes and wait for them. They are gone afterwards, whatever happens."""
    deadline = time.monotonic() + seconds
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
    finally:
        for worker in workers:
            if worker.pid is not None and worker.is_alive():
                worker.kill()
                worker.join()


def _work(rank: int, kind: str, wrap: Callable[..., nn.Module], folder: str) -> None:
    """One process: trains on its part of each batch and leaves its weights, or what went wrong, in a file."""
    torch.set_num_threads(1)
    result: dict[str, Any] = {}
    try:
        result = _train(rank, kind, wrap, folder)
    except NotApplicableError as error:
        result = {"cannot": str(error)}
    except Exception as error:
        traceback.print_exc()
        result = {"error": f"rank {rank}: {first_line(error)}"}
    finally:
        torch.save(result, Path(folder) / f"{rank}.part")
        (Path(folder) / f"{rank}.part").rename(Path(folder) / f"{rank}.pt")


def _train(rank: int, kind: str, wrap: Callable[..., nn.Module], folder: str) -> dict[str, Any]:
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    shares = [(x.chunk(WORLD)[rank], y.chunk(WORLD)[rank]) for x, y in batches(device, STEPS, torch.float64)]
    try:
        if kind == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl" if kind == "cuda" else "gloo",
            init_method=(Path(folder) / "store").as_uri(),  # no port to be free or taken
            rank=rank,
            world_size=WORLD,
            timeout=datetime.timedelta(seconds=SECONDS / 2),
        )
        plain_step(wrap(_network(device)), shares[0])
    except Exception as error:
        raise NotApplicableError(f"plain torch fails here: {first_line(error)}") from error
    result = {}
    try:
        for name in METHODS:
            model = _network(device)
            wrapped = wrap(model)
            opt = make(name, sgd(wrapped), model=wrapped)
            for share in shares:
                step(opt, wrapped, share)
            result[name] = weights(wrapped)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return result
