"""ResNet-32 with the four heads of GLMC.

Reference:
    Du et al., Global and Local Mixture Consistency Cumulative Learning for Long-tailed Visual Recognitions, CVPR 2023.
"""

from __future__ import annotations

from typing import NamedTuple, overload

from torch import Tensor, nn

from lesam.lab.models.resnet32 import Features, kaiming_normal


class Heads(NamedTuple):
    """What the heads say of one batch."""

    logits: Tensor
    """Of the conventional classifier."""
    rebalanced: Tensor
    """Logits of the re-balanced classifier, the one of inference."""
    projection: Tensor
    prediction: Tensor
    """From the projection, of the other view's projection."""


class GLMCNet(nn.Module):
    """Features, two classifiers, a projection and a predictor of projections (each one linear layer)."""

    def __init__(self, classes: int, width: int, blocks: int, hidden: int, in_channels: int) -> None:
        super().__init__()
        self.features = Features(width, blocks, in_channels)
        self.fc = nn.Linear(self.features.size, classes)
        self.fc_cb = nn.Linear(self.features.size, classes)
        self.projection = nn.Linear(self.features.size, hidden)
        self.predictor = nn.Linear(hidden, hidden)
        self.apply(kaiming_normal)

    @overload
    def forward(self, x: Tensor) -> Tensor: ...

    @overload
    def forward(self, x: Tensor, local: Tensor) -> tuple[Heads, Heads]: ...

    def forward(self, x: Tensor, local: Tensor | None = None) -> Tensor | tuple[Heads, Heads]:
        """Return the re-balanced logits of a batch or, given two views of it, all heads of both.

        Both views go through one call because DistributedDataParallel copies BatchNorm's statistics between workers
        before each call, which a second one before the backward pass would not survive. Each view has batch
        statistics of its own.
        """
        if local is None:
            rebalanced: Tensor = self.fc_cb(self.features(x))
            return rebalanced
        return self._heads(x), self._heads(local)

    def _heads(self, x: Tensor) -> Heads:
        features = self.features(x)
        projection = self.projection(features)
        return Heads(self.fc(features), self.fc_cb(features), projection, self.predictor(projection))


def resnet32_glmc(
    classes: int, *, width: int = 64, blocks: int = 5, hidden: int = 128, in_channels: int = 3
) -> GLMCNet:
    """Build GLMC's network, four times as wide as ResNet-32: 7,484,424 parameters for 100 classes, heads included.

    Example:
        >>> import torch
        >>> sum(p.numel() for p in resnet32_glmc(100).parameters())
        7484424
        >>> resnet32_glmc(5, width=4)(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 5])
    """
    if hidden < 1:
        raise ValueError(f"resnet32_glmc needs hidden >= 1, got {hidden}")
    return GLMCNet(classes, width, blocks, hidden, in_channels)
