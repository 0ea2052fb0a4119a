"""What a sharpness-aware step costs beyond its passes and the base step, next to ``pytorch_optimizer``'s SAM.

    python benchmarks/step.py [--repeats N]

Gradients are made up, so that only the optimizers' own work is seen. Counted: operations dispatched in one step,
reads of a device value on the host, and the peak of extra memory. Timed, the two in turn so that a noisy machine
favours neither: seconds outside the passes and the base step, as a ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import pytorch_optimizer
import torch
import torchvision
from measuring import Bytes, Operations, report, table
from torch import Tensor, nn

import lesam

MODELS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-18": lambda: torchvision.models.resnet18(num_classes=100),
    "ViT-B/16": lambda: torchvision.models.vit_b_16(),
}
METHODS = {"sam": 1.0, "lesam": 1.0, "lesamplus": 1.0, "gsam": 2.0}  # the copies of the parameters each may hold


class Gradients:
    """Stands in for a forward and backward: copies ready-made gradients in, as a backward would leave them."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = parameters
        self.ready = [torch.randn_like(p) * 1e-2 for p in parameters]

    def backward(self) -> None:
        for parameter, gradient in zip(self.parameters, self.ready, strict=True):
            if parameter.grad is None:
                parameter.grad = gradient.clone(memory_format=torch.preserve_format)
            else:
                parameter.grad.add_(gradient)


def sgd(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-9, momentum=0.9, foreach=True)


def our_step(name: str, parameters: list[Tensor], gradients: Gradients) -> Callable[[], None]:
    opt = lesam.METHODS[name](sgd(parameters))
    loss = torch.zeros(())

    def closure() -> Tensor:
        opt.zero_grad()
        gradients.backward()
        return loss

    return lambda: opt.step(closure)


def peer_step(parameters: list[Tensor], gradients: Gradients) -> Callable[[], None]:
    opt = pytorch_optimizer.SAM(parameters, torch.optim.SGD, rho=0.05, lr=1e-9, momentum=0.9, foreach=True)

    def step() -> None:
        opt.zero_grad()
        gradients.backward()
        opt.first_step(zero_grad=True)
        gradients.backward()
        opt.second_step(zero_grad=False)

    return step


def base_step(parameters: list[Tensor], gradients: Gradients, passes: int = 2) -> Callable[[], None]:
    """The passes and the base step alone: what every method has to do."""
    opt = sgd(parameters)

    def step() -> None:
        for _ in range(passes):
            opt.zero_grad()
            gradients.backward()
        opt.step()

    return step


def parameters_of(build: Callable[[], nn.Module]) -> list[Tensor]:
    torch.manual_seed(0)
    return list(build().parameters())


def count(build: Callable[[], nn.Module], name: str) -> dict[str, float]:
    """Operations, host reads and bytes of one step, beyond the passes and the base step."""
    counted = {}
    for label, make in (("bare", base_step), ("step", lambda p, g: our_step(name, p, g))):
        parameters = parameters_of(build)
        gradients = Gradients(parameters)
        step = make(parameters, gradients)
        step()  # buffers are allocated in the first step
        with Operations() as operations:
            step()
        counted[label] = operations
    parameters, twins = parameters_of(build), parameters_of(build)
    step, bare = our_step(name, parameters, Gradients(parameters)), base_step(twins, Gradients(twins))
    size = sum(p.numel() * p.element_size() for p in parameters)
    with Bytes() as ours:
        step(), step()
    with Bytes() as theirs:
        bare(), bare()
    return {
        "operations": counted["step"].total - counted["bare"].total,
        "host reads": counted["step"].host_reads,
        "extra memory / parameters": (ours.peak - theirs.peak) / size,
    }


def seconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def race(build: Callable[[], nn.Module], repeats: int) -> dict[str, float]:
    """Median seconds outside the passes and the base step, in turn."""
    steps: dict[str, Callable[[], None]] = {}
    for label in ("bare", "peer", *METHODS):
        parameters = parameters_of(build)
        gradients = Gradients(parameters)
        if label == "bare":
            steps[label] = base_step(parameters, gradients)
        elif label == "peer":
            steps[label] = peer_step(parameters, gradients)
        else:
            steps[label] = our_step(label, parameters, gradients)
    taken: dict[str, list[float]] = {label: [] for label in steps}
    for turn in range(repeats + 2):
        for label, step in steps.items():
            elapsed = seconds(step)
            if turn >= 2:
                taken[label].append(elapsed)
    # The quickest of many is what the work takes; the rest is what else the machine was doing.
    quickest = {label: min(times) for label, times in taken.items()}
    median = {label: statistics.median(times) for label, times in taken.items()}
    overhead = {label: quickest[label] - quickest["bare"] for label in steps}
    return {
        "peer (s)": overhead["peer"],
        **{f"{name} / peer": overhead[name] / overhead["peer"] for name in METHODS},
        **{
            f"{name} / peer (medians)": (median[name] - median["bare"]) / (median["peer"] - median["bare"])
            for name in METHODS
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    results = {}
    for model, build in MODELS.items():
        results[model] = {name: count(build, name) for name in METHODS}
        results[model]["time"] = race(build, arguments.repeats)
        rows = [
            [
                name,
                *(f"{value:.3g}" for value in results[model][name].values()),
                f"{results[model]['time'][f'{name} / peer']:.2f}",
            ]
            for name in METHODS
        ]
        print(
            table(
                f"{model}, beyond two passes and the base step",
                ["method", "operations", "host reads", "extra memory", "time / peer"],
                rows,
            )
        )
    report(
        "step",
        results,
        targets={"operations": "<= 40", "host reads": "0", "extra memory": METHODS, "time / peer": "<= 0.9"},
    )


if __name__ == "__main__":
    main()
