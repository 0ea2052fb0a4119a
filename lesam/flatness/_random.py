"""Seeded random vectors: the i-th draw of a seed is the same whatever is drawn before it, on every device."""

from __future__ import annotations

import torch
from torch import Tensor

# A prime, so that draw i of one seed and draw j of a neighbouring seed do not share a stream.
_STRIDE = 1_000_003


def generator(seed: int, index: int) -> torch.Generator:
    """The generator of draw number `index`; always on the CPU, so that devices agree."""
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    return torch.Generator().manual_seed((seed * _STRIDE + index) % (1 << 63))


def rademacher(size: int, seed: int, index: int, like: Tensor) -> Tensor:
    """A vector of independent signs, with the dtype and device of `like`."""
    signs = torch.randint(0, 2, (size,), generator=generator(seed, index), dtype=torch.int8)
    return signs.to(device=like.device, dtype=like.dtype).mul_(2).sub_(1)


def normal(size: int, seed: int, index: int, like: Tensor) -> Tensor:
    """A vector of independent standard normal numbers, with the dtype and device of `like`."""
    draw = torch.randn(size, generator=generator(seed, index), dtype=like.dtype)
    return draw.to(like.device)
