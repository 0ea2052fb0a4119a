"""What a whole step costs on ResNet-18 at CIFAR size, where passes dominate: beside SGD, and beside two bare passes.

    python benchmarks/price.py [--batch 64] [--repeats 7]

One step of every method in turn, in one process of one thread; the quickest of the repeats counts, in seconds that the
process worked, since other processes of the machine take turns with it. For LE-SAM beside SAM the ratios of all turns
are kept as well, with the 95 % interval of their mean: the study judges the paper's claim by it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from measuring import report, table
from torch import Tensor, nn

import lesam
from lesam.lab import models
from lesam.lab.runs.statistics import PairedDifference, Spread

TARGETS = {
    "Partial LE-SAM / SGD": 1.15,
    "Partial LE-SAM, norm layers alone / SGD": 1.15,
    "One-pass LE-SAM / SGD": 1.15,
    "LE-SAM / two passes and a step": 1.02,
    "LE-SAM / SAM": 1.02,
    "ESAM / SAM": 1.0,
}
METHODS = ("lesam", "sam", "esam", "partiallesam", "onepasslesam", "msam", "s2sam")
NORMS = "partiallesam, norm layers alone"
"""As it does best on convolutional networks (docs/price.md)."""


class Subject:
    """A network of its own with one optimizer; all see the same images."""

    def __init__(self, name: str, images: Tensor, labels: Tensor) -> None:
        torch.manual_seed(0)
        self.images, self.labels = images, labels
        self.model = models.build("resnet18", 100).to(memory_format=torch.channels_last)
        self.base = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
        passes = {"one pass and a step": 1, "two passes and a step": 2}
        self.step = self._bare(passes[name]) if name in passes else self._ours(name)

    def _loss(self, count: int | None = None, of: list[Tensor] | None = None) -> Tensor:
        self.base.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.images[:count]), self.labels[:count])
        loss.backward(inputs=of)
        return loss

    def _bare(self, passes: int) -> Callable[[], object]:
        def step() -> None:
            for _ in range(passes):
                self._loss()
            self.base.step()

        return step

    def _ours(self, name: str) -> Callable[[], object]:
        if name == NORMS:
            norms = lesam.norm_parameters(self.model)
            opt: Any = lesam.PartialLESAM(self.base, share=0.145, weight=None, rho_max=2.0, perturb=norms)
        else:
            opt = lesam.METHODS[name](self.base)
        if isinstance(opt, lesam.PartialLESAM):
            few, batch = opt.few(len(self.images)), len(self.images)
            return lambda: opt.step(self._loss, ascent=lambda: self._loss(few, of=opt.perturbable), share=few / batch)
        if name != "esam":
            return lambda: opt.step(self._loss)

        def sample_losses(kept: Tensor | None = None) -> Tensor:
            images, labels = (self.images, self.labels) if kept is None else (self.images[kept], self.labels[kept])
            return nn.functional.cross_entropy(self.model(images), labels, reduction="none")

        return lambda: opt.step(sample_losses=sample_losses)


def measured(batch: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of the steps of each."""
    torch.manual_seed(0)
    images = torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(100, (batch,))
    names = ("one pass and a step", "two passes and a step", *METHODS, NORMS)
    subjects = {name: Subject(name, images, labels) for name in names}
    taken: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats + 2):  # buffers are made in the first two
        for name, subject in subjects.items():
            start = time.process_time()
            subject.step()
            if turn >= 2:
                taken[name].append(time.process_time() - start)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    taken = measured(arguments.batch, arguments.repeats)
    seconds = {name: min(of) for name, of in taken.items()}
    turns = [ours / theirs for ours, theirs in zip(taken["lesam"], taken["sam"], strict=True)]
    interval = PairedDifference(spread=Spread.of(turns)).interval
    one, two = seconds["one pass and a step"], seconds["two passes and a step"]
    ratios = {
        "Partial LE-SAM / SGD": seconds["partiallesam"] / one,
        "Partial LE-SAM, norm layers alone / SGD": seconds[NORMS] / one,
        "One-pass LE-SAM / SGD": seconds["onepasslesam"] / one,
        "MSAM / SGD": seconds["msam"] / one,
        "S2-SAM / SGD": seconds["s2sam"] / one,
        "LE-SAM / two passes and a step": seconds["lesam"] / two,
        "SAM / two passes and a step": seconds["sam"] / two,
        "LE-SAM / SAM": seconds["lesam"] / seconds["sam"],
        "ESAM / SAM": seconds["esam"] / seconds["sam"],
    }
    rows = [[name, f"{ratio:.3f}", str(TARGETS.get(name, ""))] for name, ratio in ratios.items()]
    print(table(f"ResNet-18, batch {arguments.batch}", ["what", "reached", "at most"], rows))
    by_turns = {"ratios": turns, "mean": Spread.of(turns).mean, "interval": interval}
    print(f"LE-SAM / SAM over {len(turns)} turns: {by_turns['mean']:.4f} ({interval[0]:.4f} to {interval[1]:.4f})")
    results = {
        "batch": arguments.batch,
        "repeats": arguments.repeats,
        "seconds": seconds,
        "ratios": ratios,
        "LE-SAM / SAM by turns": by_turns,
    }
    report("price", results, TARGETS)


if __name__ == "__main__":
    main()
