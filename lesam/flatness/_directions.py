"""Random directions scaled to a model's own weights, so that landscapes of different models can be compared."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.linalg import vector_norm

from lesam.flatness._random import generator

Normalization = Literal["filter", "layer", "none"]
# Keeps a filter whose random draw is zero finite, as in the reference code of Li et al. (2018).
_TINY = 1e-10


def random_direction(weights: list[Tensor], seed: int, axis: int, normalization: Normalization) -> list[Tensor]:
    """A Gaussian direction in the shapes of `weights`; the raw draw depends on seed, axis and shapes alone.

    "filter" gives every row of dimension 0 (output filter or neuron) the norm of the weights there, "layer" every
    tensor the norm of its weights; both leave biases and norm layers (fewer than two dimensions) in place. "none"
    keeps the draw.
    """
    stream = generator(seed, axis)
    raw = [torch.randn(w.shape, generator=stream, dtype=torch.float64) for w in weights]
    return [_scaled(d.to(w.device, w.dtype), w, normalization) for d, w in zip(raw, weights, strict=True)]


def cosine(a: list[Tensor], b: list[Tensor]) -> float:
    """Cosine of the angle between two directions; random ones are nearly, but not exactly, orthogonal."""
    x, y = (torch.cat([t.reshape(-1).double().cpu() for t in side]) for side in (a, b))
    return float(x @ y / (x.norm() * y.norm()).clamp_min(_TINY))


def _scaled(d: Tensor, w: Tensor, normalization: Normalization) -> Tensor:
    if normalization == "none":
        return d
    if w.ndim < 2:
        return torch.zeros_like(d)
    if normalization == "layer":
        every = tuple(range(w.ndim))
    else:
        every = tuple(range(1, w.ndim))
    scale: Tensor = vector_norm(w, dim=every, keepdim=True) / (vector_norm(d, dim=every, keepdim=True) + _TINY)
    return d * scale
