"""A running average of a network's weights, as ERM++ keeps it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from lesam.lab.tasks.classification import full_precision

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class AveragedNetwork(nn.Module):
    r"""A copy of a network whose weights are the mean over steps of the network's.

    With ``w_t`` the weights after ``t`` steps and ``s`` the start of the average, after ``t >= s`` steps

    .. math:: \bar w_t = \frac{1}{t - s + 2} \sum_{i = s - 1}^{t} w_i ,

    and before that a plain copy, ``\bar w_t = w_t``. BatchNorm's statistics follow in one of two ways: each training
    batch goes through the averaged network in training mode (``"forward"``), or they are averaged like weights
    (``"average"``).

    Args:
        network: The network that is trained.
        fabric: Precision and workers.
        start: ``s``, at least 1.
        batch_norm: How the statistics follow.

    Reference:
        Teterwak et al., ERM++: An Improved Baseline for Domain Generalization, WACV 2025; the mean is that of
        DomainBed's version, in which the copy does not share memory with the network.
    """

    def __init__(
        self, network: nn.Module, fabric: Fabric, *, start: int, batch_norm: Literal["forward", "average"] = "forward"
    ) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.start, self.batch_norm = start, batch_norm
        self._fabric = fabric

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the averaged network, in the precision of training."""
        with self._fabric.autocast():
            return full_precision(self.network(images))

    @torch.no_grad()
    def follow(self, network: nn.Module, images: Tensor, steps: int) -> None:
        """Take in the network's weights after ``steps`` steps, the last of them on ``images``."""
        # From the start on, the share of the newest of w_(s-1), ..., w_t.
        share = 1.0 / (steps - self.start + 2) if steps >= self.start else None
        _take_in(self.network.parameters(), network.parameters(), share)
        if share is not None and self.batch_norm == "forward":
            self.network.train()
            self(images)
            self._share_statistics()
        else:
            _take_in(self.network.buffers(), network.buffers(), share)

    def _share_statistics(self) -> None:
        """Take the first worker's statistics on all workers, as DDP does with the trained network's."""
        if self._fabric.world_size > 1:
            for buffer in self.network.buffers():
                torch.distributed.broadcast(buffer, 0)


def _take_in(ours: Iterable[Tensor], theirs: Iterable[Tensor], share: float | None) -> None:
    """Move our tensors towards theirs by a share of the way; without one, and where they count, copy."""
    for mine, its in zip(ours, theirs, strict=True):
        if share is None or not mine.is_floating_point():
            mine.copy_(its)
        else:
            mine.lerp_(its, share)
