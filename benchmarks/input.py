"""Images per second of the input pipeline, against torchvision's for the same augmentation.

    python benchmarks/input.py [--images 50000] [--repeats 3] [--batch 128] [--threads 1 2]

Ours: ``lesam.lab.data.Batches`` over a uint8 tensor set. Peer: torchvision's ``CIFAR100`` data set (its own
``__getitem__``: PIL image, transforms), a DataLoader with two workers. Both read the same random images, go
through whole epochs in turn, and end in float32 batches in this process.

Ours is measured with one thread and with as many as torch would take; both rows are always reported, since
they part ways on a busy machine: there, operations of a millisecond on several threads wait for the slowest
one, while the peer's workers have one thread each whatever the setting. The load average at the start of each
measurement is part of the record: compare ratios of runs on a quiet machine (load well below the number of
processors). Printed and written to ``benchmarks/results/input.json``: the median of the ratios within each
round, their range, and every single measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision import transforms

from lesam.lab.data import NORMALISATIONS, Batches, TensorSet, augmentation

TARGET = 5.0
WORKERS = 2
RESULT = Path(__file__).parent / "results" / "input.json"


class RandomCIFAR100(torchvision.datasets.CIFAR100):
    """torchvision's data set over images made at random instead of files."""

    def __init__(self, split: TensorSet, transform: Callable[..., Tensor]) -> None:
        self.data = split.images.permute(0, 2, 3, 1).contiguous().numpy()
        self.targets = split.labels.tolist()
        self.transform, self.target_transform = transform, None


class Cutout:
    """Per-image Cutout as the published pipelines have it: half the images, corner in [-8, 23]."""

    def __call__(self, image: Tensor) -> Tensor:
        """Set a square to 0 with probability 1/2."""
        if torch.rand(()) < 0.5:
            top, left = torch.randint(-8, 24, (2,)).tolist()
            image[:, max(top, 0) : top + 16, max(left, 0) : left + 16] = 0
        return image


def peer(split: TensorSet, batch: int, preset: str) -> Iterable[Any]:
    """Build the torchvision loader of a preset."""
    steps = [
        transforms.RandomCrop(32, padding=4),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(*NORMALISATIONS["esam"]),
    ]
    if preset == "basic_cutout":
        steps.append(Cutout())
    return DataLoader(
        RandomCIFAR100(split, transforms.Compose(steps)),
        batch_size=batch,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
    )


def images_per_second(epoch: Iterable[Any]) -> float:
    """Read an epoch to its end."""
    start, count = time.perf_counter(), 0
    for images, _ in epoch:
        count += len(images)
    return count / (time.perf_counter() - start)


def measure(split: TensorSet, batch: int, preset: str, repeats: int, threads: list[int]) -> list[dict[str, Any]]:
    """Let all pipelines read epochs in turn; the first round only warms up."""
    ours = Batches(split, batch, augmentation(preset), device="cpu", seed=0)
    theirs = peer(split, batch, preset)
    peer_speeds: list[float] = []
    speeds: dict[int, list[float]] = {count: [] for count in threads}
    load = os.getloadavg()[0]
    for epoch in range(repeats + 1):
        peer_speeds.append(images_per_second(theirs))
        for count in threads:
            torch.set_num_threads(count)
            speeds[count].append(images_per_second(ours.epoch(epoch)))
    rows = []
    for count in threads:
        ratios = [a / b for a, b in zip(speeds[count][1:], peer_speeds[1:], strict=True)]
        rows.append(
            {
                "preset": preset,
                "threads": count,
                "load_average": load,
                "images_per_second": {"lesam": speeds[count][1:], "torchvision": peer_speeds[1:]},
                "ratio": statistics.median(ratios),
                "ratio_range": [min(ratios), max(ratios)],
            }
        )
    return rows


def commit() -> str | None:
    """Return the commit this ran at, when there is one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else None


def main() -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, torch.get_num_threads()}))
    arguments = parser.parse_args()

    source = torch.Generator().manual_seed(0)
    shape = (arguments.images, 3, 32, 32)
    images = torch.randint(0, 256, shape, generator=source, dtype=torch.uint8)
    split = TensorSet(images, torch.randint(0, 100, shape[:1], generator=source))

    results = [
        row
        for preset in ("basic", "basic_cutout")
        for row in measure(split, arguments.batch, preset, arguments.repeats, arguments.threads)
    ]
    print(f"target {TARGET:g}")
    print(f"{'augmentation':14} threads {'lesam':>12} {'torchvision':>12}  ratio  range, load")
    for row in results:
        ours, theirs = (statistics.median(values) for values in row["images_per_second"].values())
        low, high = row["ratio_range"]
        print(f"{row['preset']:14} {row['threads']:7} {ours:10,.0f}/s {theirs:10,.0f}/s", end=" ")
        print(f"{row['ratio']:6.1f}  {low:.1f}..{high:.1f}, {row['load_average']:.1f}")
    record = {
        "benchmark": "input",
        "setting": {**vars(arguments), "workers": WORKERS},
        "cpus": os.cpu_count(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
        },
        "commit": commit(),
        "target_ratio": TARGET,
        "results": results,
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written to {RESULT}")


if __name__ == "__main__":
    main()
