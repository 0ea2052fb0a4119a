"""The loss of one batch, which every pass of a step is on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Batch = tuple[Tensor, ...]
"""The tensors of one training batch, the labels last."""


class Objective:
    """The loss of one batch; remembers the right answers of its first pass in a step."""

    ascent_loss: Callable[[], Tensor] | None = None
    """Another mean loss of the batch, climbed instead of the loss itself."""

    def __init__(self, fabric: Fabric) -> None:
        """Bind the precision and the way to run a backward pass."""
        self.fabric = fabric
        self.correct: Tensor | None = None

    def take(self, batch: Batch, step: int) -> None:
        """The batch of the coming step; every pass of the step is on it."""
        self.correct = None

    def loss(self) -> Tensor:
        """Mean loss of the batch."""
        raise NotImplementedError

    def sample_losses(self, indices: Tensor | None = None) -> Tensor:
        """Loss of each sample, or of the chosen ones."""
        raise ValueError("esam chooses samples by their losses, which this kind of training does not have")

    def part(self, few: Callable[[int], int]) -> tuple[Callable[[], Tensor], float]:
        """The mean loss of the first samples, as many as ``few`` says for the batch, and their share of it.

        Their answers do not count as those of the batch.
        """
        raise NotImplementedError

    def divided(self, parts: int) -> list[Callable[[], Tensor]]:
        """The mean losses of equal parts of the batch, to be called in any order and any number of times."""
        raise ValueError("this kind of training has no optimizer.micro_batches: leave it at 1")

    def climb(self) -> Tensor:
        """The loss that is climbed, its gradient left in ``.grad``."""
        return self.backward((self.ascent_loss or self.loss)())

    def backward(self, loss: Tensor, of: Sequence[Tensor] | None = None) -> Tensor:
        """Leave the gradient of a loss in ``.grad``, or only that of some parameters."""
        self.fabric.backward(loss, inputs=of)
        return loss.detach()
