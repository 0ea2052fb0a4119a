"""What a sharpness-aware step sends between two processes, and what the wrapper adds to its time.

    python benchmarks/ddp.py [--steps N] [--repeats N]

Two gloo processes train one model with DistributedDataParallel. Counted by a communication hook: gradient bytes and
reductions per step, against plain SGD. Timed: a sharpness-aware step against the same two passes and one base step
written out without the library, turn by turn so that a noisy machine favours neither; only the ratio means anything.
"""

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from measuring import report, table
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import lesam

WORLD = 2
ROWS: dict[str, tuple[str, dict[str, Any]] | None] = {
    "SGD": None,
    "SAM, global": ("sam", {}),
    "LE-SAM, global": ("lesam", {}),
    "LE-SAM, local": ("lesam", {"perturbation": "local"}),
    "LE-SAM+, global": ("lesamplus", {}),
    "LE-SAM+, local": ("lesamplus", {"perturbation": "local"}),
    "MSAM (one pass)": ("msam", {}),
}
Step = Callable[[], None]


class Sent:
    """A communication hook that counts."""

    def __init__(self) -> None:
        self.bytes = self.reductions = 0

    @staticmethod
    def hook(sent: "Sent", bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        sent.bytes += bucket.buffer().numel() * bucket.buffer().element_size()
        sent.reductions += 1
        return allreduce_hook(None, bucket)


class Bench:
    """One model under DistributedDataParallel, its data, and ways to step it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        widths = [256, 512, 512, 512, 10]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.model = DistributedDataParallel(nn.Sequential(*layers[:-1]))
        self.sent = Sent()
        self.model.register_comm_hook(self.sent, Sent.hook)
        self.x, self.y = torch.randn(64, 256), torch.randint(0, 10, (64,))
        self.parameters = list(self.model.parameters())

    def base(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters, lr=1e-3, momentum=0.9, foreach=True)

    def backward(self) -> Tensor:
        loss = nn.functional.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        return loss

    def step_of(self, row: tuple[str, dict[str, Any]] | None) -> Step:
        """A step of a method, or of plain SGD."""
        if row is None:
            return self.passes_alone(1)
        name, options = row
        opt = lesam.METHODS[name](self.base(), model=self.model, **options)

        def closure() -> Tensor:
            opt.zero_grad()
            return self.backward()

        return lambda: opt.step(closure)

    def passes_alone(self, synchronised: int, unsynchronised: int = 0) -> Step:
        """So many passes and a base step: what every method has to do."""
        base = self.base()

        def step() -> None:
            for _ in range(unsynchronised):
                base.zero_grad()
                with self.model.no_sync():
                    self.backward()
            for _ in range(synchronised):
                base.zero_grad()
                self.backward()
            base.step()

        return step


def seconds(step: Step, steps: int) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


def measure(bench: Bench, name: str, steps: int, repeats: int) -> dict[str, float]:
    row = ROWS[name]
    step = bench.step_of(row)
    passes = 1 if row is None or row[0] == "msam" else 2
    quiet = 1 if row is not None and row[1].get("perturbation") == "local" else 0
    alone = bench.passes_alone(passes - quiet, quiet)
    step()
    alone()
    bench.sent.bytes = bench.sent.reductions = 0
    step()
    sent = {"bytes": bench.sent.bytes, "reductions": bench.sent.reductions}
    ratios = [seconds(step, steps) / seconds(alone, steps) for _ in range(repeats)]
    return {**sent, "passes": passes, "overhead": statistics.median(ratios), "spread": max(ratios) - min(ratios)}


def work(rank: int, folder: str, steps: int, repeats: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    bench = Bench()
    results = {name: measure(bench, name, steps, repeats) for name in ROWS}
    dist.destroy_process_group()
    if rank == 0:
        torch.save((results, sum(p.numel() for p in bench.parameters)), f"{folder}/results.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="steps in one timing")
    parser.add_argument("--repeats", type=int, default=5, help="timings of each, in turn")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(folder, options.steps, options.repeats), nprocs=WORLD)
        results, size = torch.load(f"{folder}/results.pt")
    sgd = results["SGD"]["bytes"]
    rows = [
        [
            name,
            f"{found['bytes']:,}",
            f"{found['bytes'] / sgd:.2f}",
            str(found["reductions"]),
            str(found["passes"]),
            f"{found['overhead']:.2f} +- {found['spread'] / 2:.2f}",
        ]
        for name, found in results.items()
    ]
    heads = ["method", "bytes sent per step", "x SGD", "reductions", "passes", "time / bare passes"]
    print(table(f"Two gloo processes, {size:,} parameters, {options.repeats} x {options.steps} steps", heads, rows))
    targets = {"global": "2 x SGD's bytes", "local": "1 x SGD's bytes"}
    report("ddp", {"parameters": size, "steps": options.steps, "repeats": options.repeats, "rows": results}, targets)


if __name__ == "__main__":
    main()
