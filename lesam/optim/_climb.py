"""From a gradient to a perturbation: ``w + rho * eps_hat``, with ``eps_hat = P u / sqrt(u' P u)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ._arithmetic import Vector
from ._combiners import Combiner
from ._directions import Ascent, Direction
from ._metrics import Metric
from ._radii import Radius
from ._savers import RandomSubset, TopSamples


@dataclass(frozen=True)
class Parts:
    """The slots of the loop, filled; a pairing that makes no sense is refused here."""

    direction: Direction
    metric: Metric
    radius: Radius
    combine: Combiner
    subset: RandomSubset | None = None
    samples: TopSamples | None = None

    def __post_init__(self) -> None:
        direction, metric, radius, combine = self.direction, self.metric, self.radius, self.combine
        kinds = ((direction, Direction), (metric, Metric), (radius, Radius), (combine, Combiner))
        for slot, kind in kinds:
            if not isinstance(slot, kind):
                raise ValueError(f"{slot!r} is not a {kind.__name__.lower()}")
        for saver, wanted in ((self.subset, RandomSubset), (self.samples, TopSamples)):
            if saver is not None and not isinstance(saver, wanted):
                raise ValueError(f"{saver!r} is not a {wanted.__name__}")
        if radius.needs_slope and not direction.slope_known:
            raise ValueError(
                f"{radius!r} cannot be used with {direction!r}: it needs the slope <g, eps_hat> before the pass, and "
                "a one-pass direction learns the gradient only in it. Use Fixed(rho), or a direction made from the "
                "gradient at w"
            )
        if radius.needs_slope and direction.slope_vanishes and not radius.bounded:
            raise ValueError(
                f"{radius!r} cannot be used with {direction!r} without a cap: the slope along it can vanish while the "
                "gradient does not, and the radius would grow without bound. Give rho_max"
            )
        if direction.passes == 1:
            needing: tuple[tuple[object, bool], ...] = (
                (metric, metric.needs_gradient),
                (combine, combine.mixes_gradient or bool(combine.products)),
                (self.subset, self.subset is not None),
                (self.samples, self.samples is not None),
            )
            for part, needs in needing:
                if needs:
                    raise ValueError(
                        f"{part!r} cannot be used with {direction!r}: it needs the gradient at w, and a one-pass "
                        "direction never computes it"
                    )


class Climb(NamedTuple):
    """A perturbation about to be made: ``w <- w + coefficient * u``, unless ``skip`` is 1."""

    u: Vector
    coefficient: Tensor
    skip: Tensor
    slope: Tensor | None
    rho: Tensor | Callable[[], Tensor]
    sigma: float
    capped: Tensor | float


def climb(parts: Parts, ascent: Ascent, keep_gradient: bool) -> Climb:
    """Work out the perturbation. Overwrites the gradient unless ``keep_gradient``; leaves the weights alone.

    Two work buffers at most: "backup" (free until the weights go there) holds the metric's root, "direction" holds
    ``u`` where it is neither the gradient nor a remembered vector.
    """
    space, memory, g = ascent.space, ascent.memory, ascent.g
    direction = parts.direction
    w = space.weights()

    root = parts.metric.root(space, w, g, out=memory.scratch("backup").vector(space))
    length = _length_of_gradient(ascent, root) if direction.measured_by_gradient else None
    out = [] if direction.is_gradient or direction.passes == 1 else memory.scratch("direction").vector(space)
    u = direction.vector(ascent, out)
    along_gradient = u is g

    if root is not None:
        if not (u is out or (along_gradient and not keep_gradient)):
            copy = memory.scratch("direction").vector(space)
            space.copy_(copy, u)
            u = copy
        space.multiply_(u, root)
        if length is None or along_gradient:
            length = space.norm(u)
        space.multiply_(u, root)
    elif along_gradient:
        length = ascent.g_norm
    if length is None:
        length = space.norm(u)

    if along_gradient:
        slope: Tensor | None = length  # <g, P g> / sqrt(g' P g)
    elif direction.measured_by_gradient and root is None:
        slope = ascent.g_norm  # the added part is orthogonal to g
    elif parts.radius.needs_slope and g is not None:
        slope = space.dot(g, u, memory.scratch("backup")) / length
    else:
        slope = None

    rho, sigma, capped = parts.radius(space.scalar(float("nan")) if slope is None else slope, ascent.step)
    if parts.subset is not None and not parts.radius.needs_slope:
        # ESAM climbs 1 / beta as far on a share beta of the tensors. A loss budget needs no such correction.
        rho = rho / parts.subset.beta
    coefficient = torch.as_tensor(rho / length if direction.sign == 1.0 else -rho / length)
    reached: Tensor | Callable[[], Tensor] = rho if isinstance(rho, Tensor) else lambda: rho * (length > 0)
    return Climb(
        u=u,
        coefficient=coefficient.nan_to_num(0.0, 0.0, 0.0),  # no way up at a zero gradient
        skip=not_finite(length),  # and none to be trusted at a non-finite one
        slope=slope,
        rho=reached,
        sigma=sigma,
        capped=capped,
    )


def not_finite(scalar: Tensor) -> Tensor:
    """1 where ``scalar`` is infinite or NaN, else 0: the form in which fused kernels take a reason to skip."""
    return (scalar * 0.0).nan_to_num(nan=1.0)


def _length_of_gradient(ascent: Ascent, root: Vector | None) -> Tensor:
    """``sqrt(g' P g) = |T g|``."""
    if root is None or ascent.g is None:
        return torch.as_tensor(ascent.g_norm)
    scaled = ascent.memory.scratch("direction").vector(ascent.space)
    ascent.space.copy_(scaled, ascent.g)
    ascent.space.multiply_(scaled, root)
    return ascent.space.norm(scaled)
