"""What a sharpness-aware step costs beyond its passes and the base step, next to ``pytorch_optimizer``'s SAM.

    python benchmarks/step.py [--repeats N]

The backward delivers ready-made gradients, so that only the optimizers' own work is seen. Counted: operations
dispatched in one step, reads of a device value on the host, and the peak of extra memory, also with bfloat16 weights.
Timed, all in turn so that a noisy machine favours none: seconds beyond the passes and the base step, as a ratio to the
peer's; and for 1,000 small tensors, where the number of calls decides, seconds outside the passes beside a plain step
of SGD.
"""

from __future__ import annotations

import argparse
import functools
import gc
import statistics
import time
from collections.abc import Callable

import pytorch_optimizer
import torch
import torchvision
from measuring import Gradients, report, table
from torch import Tensor, nn

import lesam
from lesam.optim.selfcheck.counting import Bytes, Operations

Build = Callable[[], list[Tensor]]


def network(build: Callable[[], nn.Module]) -> Build:
    """Fresh parameters of a network that is initialised once."""
    initial = functools.cache(lambda: list(build().parameters()))
    return lambda: [nn.Parameter(parameter.detach().clone()) for parameter in initial()]


def tensors(number: int, *shape: int, dtype: torch.dtype = torch.float32) -> Build:
    return lambda: [nn.Parameter(torch.randn(*shape).to(dtype)) for _ in range(number)]


MODELS: dict[str, Build] = {
    "ResNet-18": network(lambda: torchvision.models.resnet18(num_classes=100)),
    "ViT-B/16": network(lambda: torchvision.models.vit_b_16()),
}
SMALL = "1,000 tensors of 16 x 16"
BFLOAT16: dict[str, Build] = {
    "one tensor of 64 MiB": tensors(1, 4096, 8192, dtype=torch.bfloat16),
    SMALL: tensors(1000, 16, 16, dtype=torch.bfloat16),
}
#: the copies of the parameters each may hold
METHODS = {"sam": 1.0, "lesam": 1.0, "lesamplus": 1.0, "gsam": 2.0}
#: operations each may take
OPERATIONS = {"sam": 15, "lesam": 22, "lesamplus": 28, "gsam": 35}
#: with bfloat16 weights, whatever the number of tensors; and the copies of them, backup and room to round in included
OPERATIONS_BFLOAT16 = 100
COPIES_BFLOAT16 = {name: copies + 1.5 for name, copies in METHODS.items()}


def allowed(name: str, parameters: list[Tensor], bfloat16: bool = False) -> tuple[int, float]:
    """Operations that a step may take and copies of the parameters it may hold."""
    added = name == "lesamplus"  # a gradient that arrives in the second pass, to the sum that is there already
    if bfloat16:  # at the peak, in the climb, none arrives
        return OPERATIONS_BFLOAT16 + added * len(parameters), COPIES_BFLOAT16[name]
    sizes = [parameter.numel() for parameter in parameters]
    return OPERATIONS[name] + added * len(sizes), METHODS[name] + added * max(sizes) / sum(sizes)


def all_allowed() -> dict[str, dict[str, dict[str, float]]]:
    """The targets of every row that is counted."""
    models = {**MODELS, **{f"bfloat16, {model}": build for model, build in BFLOAT16.items()}}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for model, build in models.items():
        parameters = build()
        limits = {name: allowed(name, parameters, model.startswith("bfloat16")) for name in METHODS}
        found[model] = {
            name: {"operations": operations, "host reads": 0, "copies": copies}
            for name, (operations, copies) in limits.items()
        }
    return found


class Subject:
    """An optimizer at work on parameters of its own: ``step`` is one whole step."""

    def __init__(self, name: str, build: Build) -> None:
        torch.manual_seed(0)
        self.parameters = build()
        self.gradients = Gradients(self.parameters)
        self.inside = 0.0  # seconds spent in the passes of the last step
        self.step = {"bare": self._bare, "sgd": self._sgd, "peer": self._peer}.get(name, lambda: self._ours(name))()

    def _pass(self, opt: torch.optim.Optimizer) -> Tensor:
        start = time.perf_counter()
        opt.zero_grad()
        loss = self.gradients.loss()
        loss.backward()
        self.inside += time.perf_counter() - start
        return loss

    def _base(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters, lr=1e-9, momentum=0.9, foreach=True)

    def _ours(self, name: str) -> Callable[[], None]:
        opt = lesam.METHODS[name](self._base())
        return lambda: opt.step(lambda: self._pass(opt))

    def _peer(self) -> Callable[[], None]:
        options = {"rho": 0.05, "lr": 1e-9, "momentum": 0.9, "foreach": True}
        opt = pytorch_optimizer.SAM(self.parameters, torch.optim.SGD, **options)

        def step() -> None:
            self._pass(opt)
            opt.first_step(zero_grad=True)
            self._pass(opt)
            opt.second_step(zero_grad=False)

        return step

    def _sgd(self) -> Callable[[], None]:
        return self._bare(passes=1)

    def _bare(self, passes: int = 2) -> Callable[[], None]:
        """The passes and the base step alone: what every method has to do."""
        opt = self._base()

        def step() -> None:
            for _ in range(passes):
                self._pass(opt)
            opt.step()

        return step

    def seconds(self) -> tuple[float, float]:
        """One step: all of it, and its passes."""
        self.inside, start = 0.0, time.perf_counter()
        self.step()
        return time.perf_counter() - start, self.inside


# ---------------------------------------------------------------------- counting


def count(build: Build, name: str) -> dict[str, float]:
    """Operations, host reads and bytes of one step, beyond the passes and the base step."""
    counted, peaks = {}, {}
    for label in ("bare", name):
        subject = Subject(label, build)
        subject.step()  # buffers are allocated in the first step
        with Operations() as counted[label]:
            subject.step()
        subject = Subject(label, build)
        size = sum(p.numel() * p.element_size() for p in subject.parameters)
        with Bytes() as followed:
            subject.step(), subject.step()
        peaks[label] = followed.peak
    return {
        "operations": counted[name].total - counted["bare"].total,
        "host reads": counted[name].host_reads,
        "extra memory / parameters": (peaks[name] - peaks["bare"]) / size,
    }


def print_counts(title: str, counts: dict[str, dict[str, float]], build: Build, bfloat16: bool = False) -> None:
    rows = []
    for name, number in counts.items():
        operations, copies = allowed(name, build(), bfloat16)
        rows.append(
            [
                name,
                f"{number['operations']:.0f} (<= {operations})",
                f"{number['host reads']:.0f} (0)",
                f"{number['extra memory / parameters']:.2f} (<= {copies:.2f})",
            ]
        )
    heads = ["method", "operations (target)", "host reads (target)", "copies of the parameters (target)"]
    print(table(title, heads, rows))


# ---------------------------------------------------------------------- timing


def in_turn(build: Build, labels: list[str], repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of many steps and of the passes in them, each optimizer in turn."""
    gc.collect()  # a model's worth of earlier subjects
    subjects = {label: Subject(label, build) for label in labels}
    taken: dict[str, list[tuple[float, float]]] = {label: [] for label in labels}
    for turn in range(repeats + 2):
        for label, subject in subjects.items():
            seconds = subject.seconds()
            if turn >= 2:
                taken[label].append(seconds)
    return taken


def race(build: Build, repeats: int) -> dict[str, float]:
    """Seconds beyond two passes and the base step, as a ratio to the peer's."""
    taken = in_turn(build, ["bare", "peer", *METHODS], repeats)
    # The quickest of many is what the work takes; the rest is what else the machine was doing.
    quickest = {label: min(total for total, _ in times) for label, times in taken.items()}
    median = {label: statistics.median(total for total, _ in times) for label, times in taken.items()}
    overhead = {label: quickest[label] - quickest["bare"] for label in taken}
    return {
        "peer (s)": overhead["peer"],
        **{f"{name} / peer": overhead[name] / overhead["peer"] for name in METHODS},
        **{
            f"{name} / peer (medians)": (median[name] - median["bare"]) / (median["peer"] - median["bare"])
            for name in METHODS
        },
    }


def race_on_small_tensors(repeats: int) -> dict[str, dict[str, float]]:
    """Seconds outside the passes, base step included; and how much longer the passes were than bare ones."""
    taken = in_turn(tensors(1000, 16, 16), ["bare", "sgd", "peer", *METHODS], repeats)
    inside = {label: min(passes for _, passes in times) for label, times in taken.items()}
    return {
        label: {
            "outside the passes (s)": min(total - passes for total, passes in taken[label]),
            "outside the passes (s), median": statistics.median(total - passes for total, passes in taken[label]),
            "longer passes (s)": 0.0 if label == "sgd" else inside[label] - inside["bare"],
        }
        for label in ("sgd", "peer", *METHODS)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    results: dict[str, dict[str, dict[str, float]]] = {}
    for model, build in MODELS.items():
        counts = {name: count(build, name) for name in METHODS}
        times = race(build, arguments.repeats)
        results[model] = {**counts, "time": times}
        print_counts(f"{model}, beyond two passes and the base step", counts, build)
        rows = [[name, f"{times[f'{name} / peer']:.2f} (<= 0.9)"] for name in METHODS]
        print(table(f"{model}, seconds beyond the passes and the base step", ["method", "ratio to the peer"], rows))

    results[SMALL] = race_on_small_tensors(arguments.repeats)
    rows = [[name, *(f"{1000 * value:.2f}" for value in row.values())] for name, row in results[SMALL].items()]
    heads = ["step of", "outside the passes", "median", "passes longer by"]
    print(table(f"{SMALL}, milliseconds with the base step", heads, rows))

    for model, build in BFLOAT16.items():
        counts = {name: count(build, name) for name in METHODS}
        results[f"bfloat16, {model}"] = counts
        print_counts(f"bfloat16, {model}, beyond two passes and the base step", counts, build, bfloat16=True)

    report(
        "step",
        results,
        targets={
            "operations": OPERATIONS,
            "host reads": "0",
            "extra memory": METHODS,
            "lesamplus": "one operation a tensor and one arriving tensor on top",
            "time / peer": "<= 0.9",
            "bfloat16": {"operations": OPERATIONS_BFLOAT16, "extra memory": COPIES_BFLOAT16},
            "allowed": all_allowed(),
        },
    )


if __name__ == "__main__":
    main()
