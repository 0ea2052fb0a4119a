"""Images per second of the lab's loop with LE-SAM, against a bare loop and a loop in the style of published scripts.

Three loops train the same ResNet-18 at CIFAR size on the same images, interleaved in blocks so that a noisy machine
favours none:

- ``lab``: ``lesam train``'s session, with its data pipeline, augmentation, schedules and metrics.
- ``bare``: two forward-backward passes and an SGD step on one ready batch, nothing else.
- ``script``: a torchvision-style data set (PIL images, transforms, DataLoader with two workers) and
  ``pytorch_optimizer``'s SAM.

Prints one line a block, ends with the medians of the ratios within a block, and writes ``results/train.json``; exits
with 1 when the lab is below 0.97 of the bare loop or not faster than the script.

    python benchmarks/train.py [--width 64] [--batch 128] [--blocks 5] [--steps 4]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
from lightning.fabric import Fabric
from measuring import report
from pytorch_optimizer import SAM
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from lesam.lab import data, models, recipes
from lesam.lab.config.text import override
from lesam.lab.training.fabric import make_fabric
from lesam.lab.training.session import Session

Block = Callable[[int], None]
"""Takes a number of steps."""


def lab(arguments: argparse.Namespace, fabric: Fabric) -> Block:
    """The loop of ``lesam train``, step by step."""
    config = recipes.build("cifar100-resnet18", method="lesam", scale="paper")
    config = override(config, [f"model.options.width={arguments.width}", f"data.batch_size={arguments.batch}"])
    synthetic = recipes.build("cifar100-resnet18", method="lesam", scale="smoke").data
    changes = {"image_size": 32, "classes": 100, "train_size": arguments.images, "test_size": 100}
    from dataclasses import replace

    config = replace(config, data=replace(config.data, name=synthetic.name, options=changes))
    session = Session(config, fabric)
    session.model.train()

    def stream() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            yield from session.batches()
            session.end_epoch()

    batches = stream()

    def block(steps: int) -> None:
        for _ in range(steps):
            session.advance(next(batches))

    return block


def bare(arguments: argparse.Namespace, fabric: Fabric) -> Block:
    """Two passes and a step on one batch that is already where it is needed."""
    device = fabric.device
    model = models.build("resnet18", 100, width=arguments.width).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    shape = (arguments.batch, 3, 32, 32)
    images = torch.randn(shape, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(100, shape[:1], device=device)

    def block(steps: int) -> None:
        for _ in range(steps):
            for _ in range(2):
                optimizer.zero_grad()
                functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    return block


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Images that are decoded and augmented one by one, as torchvision's CIFAR data sets do it."""

    def __init__(self, split: data.TensorSet) -> None:
        """Hold the images as arrays, height and width first."""
        self._images = split.images.permute(0, 2, 3, 1).contiguous().numpy()
        self._labels = split.labels.tolist()
        self._transform = transforms.Compose(
            [
                transforms.ToPILImage(),
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(*data.normalisation("esam")),
            ]
        )

    def __len__(self) -> int:
        """Number of images."""
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """One augmented image and its label."""
        return self._transform(self._images[index]), self._labels[index]


def script(arguments: argparse.Namespace, fabric: Fabric) -> Block:
    """What the published training scripts do."""
    device = fabric.device
    split = data.load("synthetic", image_size=32, classes=100, train_size=arguments.images, test_size=100).train
    assert isinstance(split, data.TensorSet)
    loader = DataLoader(
        Pictures(split), batch_size=arguments.batch, shuffle=True, num_workers=2, persistent_workers=True
    )
    model: nn.Module = models.build("resnet18", 100, width=arguments.width).to(device)
    optimizer = SAM(
        model.parameters(), torch.optim.SGD, rho=0.05, lr=0.05, momentum=0.9, weight_decay=1e-3, use_gc=False
    )

    def stream() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            yield from loader

    batches = stream()

    def block(steps: int) -> None:
        for _ in range(steps):
            images, labels = (part.to(device) for part in next(batches))
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.first_step(zero_grad=True)
            functional.cross_entropy(model(images), labels).backward()
            optimizer.second_step(zero_grad=True)
            loss.item()  # scripts log it

    return block


def seconds(block: Block, steps: int, device: torch.device) -> float:
    """Time of some steps, with nothing left to do on the device before or after."""
    synchronise = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronise()
    began = time.perf_counter()
    block(steps)
    synchronise()
    return time.perf_counter() - began


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage; 64 is ResNet-18")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--images", type=int, default=2048, help="size of the made-up training set")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="steps of each loop in a block")
    arguments = parser.parse_args()
    fabric = make_fabric(recipes.build("cifar100-resnet18", scale="paper").system)
    loops = {make.__name__: make(arguments, fabric) for make in (lab, bare, script)}
    for block in loops.values():  # one block to warm up
        seconds(block, 1, fabric.device)
    times: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(arguments.blocks):
        for name, block in loops.items():
            times[name].append(seconds(block, arguments.steps, fabric.device))
        speeds = (f"{name} {arguments.steps * arguments.batch / times[name][-1]:.1f}" for name in loops)
        print(f"block {number + 1}: images per second: {', '.join(speeds)}", flush=True)
    against = {
        name: statistics.median(b / a for a, b in zip(times["lab"], times[name], strict=True))
        for name in ("bare", "script")
    }
    print(f"lab / bare = {against['bare']:.3f} (wanted: at least 0.97)")
    print(f"lab / script = {against['script']:.3f} (wanted: above 1)")
    sizes = {name: value for name, value in vars(arguments).items() if name != "images"}
    measured = {"sizes": sizes, "seconds": times, "speed_of_lab_against": against}
    report("train", measured, {"bare": 0.97, "script": 1.0})
    return int(against["bare"] < 0.97 or against["script"] <= 1.0)


if __name__ == "__main__":
    sys.exit(main())
