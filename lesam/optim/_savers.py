"""Cost savers: ESAM's two ways to spend less than two passes (Du et al., ICLR 2022), and a first pass on a part."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .schedules import plain


class RandomSubset:
    """Climb on a random subset of the tensors, each in it with probability ``beta``, ``1 / beta`` times as far.

    The draw for a step comes from a generator seeded by ``(seed, step)``: equal on all workers, nothing to save.

    Example:
        >>> RandomSubset(beta=0.5).mask(tensors=6, step=0) == RandomSubset(beta=0.5).mask(tensors=6, step=0)
        True
    """

    def __init__(self, beta: float, seed: int = 0) -> None:
        self.beta = plain("beta", beta, 0.0, 1.0, open_low=True)
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ValueError(f"seed must be a whole number, got {seed!r}")
        self.seed = seed

    def mask(self, tensors: int, step: int) -> list[bool]:
        """Which of ``tensors`` tensors are climbed at ``step``."""
        # Spread the pair over 64 bits: neighbouring seeds must not share a stream at neighbouring steps.
        generator = torch.Generator("cpu").manual_seed((self.seed * 0x9E3779B97F4A7C15 + step) % 2**63)
        draws: list[float] = torch.rand(tensors, generator=generator, device="cpu").tolist()
        return [draw < self.beta for draw in draws]

    def of(self, tensors: list[Tensor], step: int) -> list[Tensor]:
        """Those of the tensors that are climbed at ``step``."""
        return [tensor for tensor, taken in zip(tensors, self.mask(len(tensors), step), strict=True) if taken]

    def reach(self, rho: Tensor | float) -> Tensor | float:
        """ESAM climbs ``rho / beta`` on a share ``beta`` of the tensors. A loss budget needs no such correction."""
        return rho / self.beta

    def __repr__(self) -> str:
        return f"RandomSubset(beta={self.beta!r}, seed={self.seed!r})"


class TopSamples:
    """Take the second gradient on the ``ceil(gamma * B)`` samples whose loss rose most, ties by index.

    Example:
        >>> TopSamples(gamma=0.5).keep(torch.tensor([0.1, 0.9, 0.9, 0.3]))
        tensor([1, 2])
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = plain("gamma", gamma, 0.0, 1.0, open_low=True)

    def keep(self, rise: Tensor) -> Tensor:
        """Indices of the samples to keep, in ascending order."""
        count = math.ceil(self.gamma * rise.numel() - 1e-9)  # 0.1 * 30 is a little more than 3
        order = torch.sort(rise.flatten(), descending=True, stable=True).indices
        return order[:count].sort().values

    def __repr__(self) -> str:
        return f"TopSamples(gamma={self.gamma!r})"


class BatchPart:
    """Climb on a part of the batch: the first pass is on a ``share`` of its samples, the second on all of them.

    The samples are the caller's to choose, for example the first :meth:`count` of a shuffled batch. Each step says what
    share they are, ``step(closure, ascent=part, share=...)`` or ``clean(share=...)``; one that does not is on the whole
    batch, and is what it would be without this part.

    Example:
        >>> BatchPart(share=0.1).count(64), BatchPart(share=0.1).count(8)
        (6, 2)
    """

    def __init__(self, share: float) -> None:
        self.share = plain("share", share, 0.0, 1.0, open_low=True)

    def count(self, batch: int) -> int:
        """Samples of the first pass: the share, rounded down, and at least two, of which BatchNorm can take a mean."""
        if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
            raise ValueError(f"a batch has at least one sample, got {batch!r}")
        return min(batch, max(2, int(self.share * batch + 1e-9)))

    def __repr__(self) -> str:
        return f"BatchPart(share={self.share!r})"
