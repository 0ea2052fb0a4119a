"""The two balls of the attacks: where a start lies, which way is up, and how to get back inside."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Ball(Protocol):
    """The norm of an attack. A perturbation has the shape of a batch, and every image a ball of its own."""

    def start(self, images: Tensor, eps: float, generator: torch.Generator) -> Tensor:
        """A random perturbation of at most ``eps``, drawn where the generator is."""

    def direction(self, gradient: Tensor) -> Tensor:
        """The step of length one that gains most to first order."""

    def project(self, delta: Tensor, eps: float) -> Tensor:
        """The nearest perturbation of at most ``eps``."""


class Cube:
    """L-infinity: every pixel by itself."""

    def start(self, images: Tensor, eps: float, generator: torch.Generator) -> Tensor:
        """Uniform in ``[-eps, eps]``."""
        uniform = torch.rand(images.shape, generator=generator, device=generator.device, dtype=images.dtype)
        return (2 * uniform - 1).mul(eps).to(images.device)

    def direction(self, gradient: Tensor) -> Tensor:
        """The signs."""
        return gradient.sign()

    def project(self, delta: Tensor, eps: float) -> Tensor:
        """Clip."""
        return delta.clamp(-eps, eps)


class Sphere:
    """L2 over all pixels of an image."""

    def start(self, images: Tensor, eps: float, generator: torch.Generator) -> Tensor:
        """A direction uniform on the sphere and a length uniform in ``[0, eps]``."""
        where, dtype = generator.device, images.dtype
        normal = torch.randn(images.shape, generator=generator, device=where, dtype=dtype)
        length = torch.rand(len(images), generator=generator, device=where, dtype=dtype)
        return (normal * _per_image(eps * length, images) / _norms(normal)).to(images.device)

    def direction(self, gradient: Tensor) -> Tensor:
        """``g / (|g| + 1e-10)``: nowhere where there is no gradient."""
        return gradient / (_norms(gradient) + 1e-10)

    def project(self, delta: Tensor, eps: float) -> Tensor:
        """Shorten to ``eps`` what is longer."""
        return delta * (eps / _norms(delta).clamp(min=eps))


BALLS: dict[str, Ball] = {"linf": Cube(), "l2": Sphere()}
"""The balls by the name of their norm."""

STEP_SHARES: dict[str, float] = {"linf": 1 / 4, "l2": 1 / 8}
"""Usual step size as a share of the radius."""


def _norms(batch: Tensor) -> Tensor:
    return _per_image(batch.flatten(1).norm(dim=1), batch)


def _per_image(values: Tensor, batch: Tensor) -> Tensor:
    """One value an image, in a shape that multiplies a batch."""
    return values.view(-1, *[1] * (batch.dim() - 1))
