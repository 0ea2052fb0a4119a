"""Plain classification with cross-entropy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from lesam.lab.config.task import ClassificationConfig
from lesam.lab.tasks.objective import Batch, Objective
from lesam.lab.tasks.task import Task, right_answers

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Classification(Task):
    """Cross-entropy on labelled images."""

    def make_objective(self) -> CrossEntropy:
        """Cross-entropy, smoothed where the run says so."""
        task = cast(ClassificationConfig, self.parts.config.task)
        return CrossEntropy(self.parts.fabric, self.parts.inner, task.label_smoothing)


class CrossEntropy(Objective):
    """Cross-entropy of a model on one batch of images and labels."""

    def __init__(self, fabric: Fabric, model: nn.Module, label_smoothing: float = 0.0) -> None:
        """Bind the network, the precision and the smoothing."""
        super().__init__(fabric)
        self.model, self.label_smoothing = model, label_smoothing
        self.images = self.labels = torch.empty(0)

    def take(self, batch: Batch, step: int) -> None:
        """Take the batch of the coming step."""
        super().take(batch, step)
        self.images, self.labels = batch

    def sample_losses(self, indices: Tensor | None = None) -> Tensor:
        """Loss of each sample, or of the chosen ones."""
        chosen = slice(None) if indices is None else indices
        return self._losses(self.images[chosen], self.labels[chosen], "none")

    def loss(self) -> Tensor:
        """Mean loss of the batch."""
        return self.mean_loss(self.images, self.labels)

    def mean_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of some images."""
        return self._losses(images, labels, "mean")

    def part(self, few: Callable[[int], int]) -> tuple[Callable[[], Tensor], float]:
        """The mean loss of the first images, and their share of the batch."""
        count = few(len(self.images))

        def loss() -> Tensor:
            counted = self.correct
            found = self.mean_loss(self.images[:count], self.labels[:count])
            self.correct = counted
            return found

        return loss, count / len(self.images)

    def divided(self, parts: int) -> list[Callable[[], Tensor]]:
        """The mean losses of equal parts of the batch."""
        if len(self.images) % parts:
            raise ValueError(
                f"a batch of {len(self.images)} images has no {parts} equal parts (optimizer.micro_batches); "
                "choose a divisor of data.batch_size, and data.drop_last=true where a last batch is smaller"
            )
        return [
            Part(self, images, labels)
            for images, labels in zip(self.images.chunk(parts), self.labels.chunk(parts), strict=True)
        ]

    def _losses(self, images: Tensor, labels: Tensor, reduction: str) -> Tensor:
        with self.fabric.autocast():
            logits = full_precision(self.model(images))
        if self.correct is None:
            self.correct = right_answers(logits, labels)
        return functional.cross_entropy(logits, labels, reduction=reduction, label_smoothing=self.label_smoothing)


class Part:
    """The mean loss of a part of a batch; its first call adds to the batch's right answers."""

    def __init__(self, whole: CrossEntropy, images: Tensor, labels: Tensor) -> None:
        """Bind the part."""
        self.whole, self.images, self.labels, self.seen = whole, images, labels, False

    def __call__(self) -> Tensor:
        """Forward pass of the part."""
        before, self.whole.correct = self.whole.correct, None
        loss = self.whole.mean_loss(self.images, self.labels)
        if self.seen or self.whole.correct is None:
            self.whole.correct = before
        elif before is not None:
            self.whole.correct = before + self.whole.correct
        self.seen = True
        return loss


def full_precision(outputs: Tensor) -> Tensor:
    """Outputs in a type with enough digits for a loss."""
    return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs
