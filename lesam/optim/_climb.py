"""From a gradient to a perturbation: ``w + rho * eps_hat``, with ``eps_hat = P u / sqrt(u' P u)``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ._arithmetic import Vector
from ._bases import Bases
from ._beside import check_bases as check_beside
from ._combiners import Combiner
from ._directions import Ascent, Direction, given
from ._gates import Gate
from ._metrics import Metric
from ._radii import Radius
from ._savers import BatchPart, RandomSubset, TopSamples


@dataclass(frozen=True)
class Parts:
    """The slots of the loop, filled; a pairing that makes no sense is refused here."""

    direction: Direction
    metric: Metric
    radius: Radius
    combine: Combiner
    subset: RandomSubset | None = None
    samples: TopSamples | None = None
    gate: Gate | None = None
    part: BatchPart | None = None

    def __post_init__(self) -> None:
        direction, metric, radius, combine = self.direction, self.metric, self.radius, self.combine
        kinds = ((direction, Direction), (metric, Metric), (radius, Radius), (combine, Combiner))
        for slot, kind in kinds:
            if not isinstance(slot, kind):
                raise ValueError(f"{slot!r} is not a {kind.__name__.lower()}")
        savers = ((self.subset, RandomSubset), (self.samples, TopSamples), (self.gate, Gate), (self.part, BatchPart))
        for saver, wanted in savers:
            if saver is not None and not isinstance(saver, wanted):
                raise ValueError(f"{saver!r} is not a {wanted.__name__}")
        if self.gate is not None and self.subset is not None:
            raise ValueError(
                f"{self.gate!r} cannot be used with {self.subset!r}: a step that does not climb descends with the "
                "first gradient, and the subset leaves tensors out of it"
            )
        estimated = radius.takes_estimates and direction.slope_estimated
        if radius.needs_slope and not direction.slope_known and not estimated:
            raise ValueError(
                f"{radius!r} cannot be used with {direction!r}: it needs the slope <g, eps_hat> before the pass, and "
                "a one-pass direction learns the gradient only in it. Use Fixed(rho), EstimatedBudget(sigma) with "
                "Stale(), or a direction made from the gradient at w"
            )
        if radius.needs_slope and direction.slope_vanishes and not radius.bounded:
            raise ValueError(
                f"{radius!r} cannot be used with {direction!r} without a cap: the slope along it can vanish while the "
                "gradient does not, and the radius would grow without bound. Give rho_max"
            )
        if combine.mirrors and self.samples is not None:
            raise ValueError(
                f"{self.samples!r} cannot be used with {combine!r}: it chooses samples for the pass at w + eps, and "
                "the pass at w - eps would choose others"
            )
        if self.part is not None:
            self._check_part(self.part)
        if direction.passes == 1:
            needing: tuple[tuple[object, bool], ...] = (
                (metric, metric.needs_gradient),
                (combine, combine.mixes_gradient or bool(combine.products)),
                (self.subset, self.subset is not None),
                (self.samples, self.samples is not None),
                (self.gate, self.gate is not None),
                (self.part, self.part is not None),
            )
            for part, needs in needing:
                if needs:
                    raise ValueError(
                        f"{part!r} cannot be used with {direction!r}: it needs the gradient at w, and a one-pass "
                        "direction never computes it"
                    )

    def _check_part(self, part: BatchPart) -> None:
        """Refuse what would descend with the gradient of a part, or choose samples of its own."""
        combine = self.combine
        descends = combine.mixes_gradient or bool(combine.products) or combine.mirrors
        for other, clashes in ((combine, descends), (self.gate, self.gate is not None)):
            if clashes:
                raise ValueError(
                    f"{part!r} cannot be used with {other!r}: a step descends with the first gradient or is measured "
                    "by it, and here that is of a part of the batch"
                )
        if self.samples is not None:
            raise ValueError(f"{part!r} cannot be used with {self.samples!r}, which compares the losses of all samples")

    @property
    def remembers(self) -> tuple[str, ...]:
        """Names of the buffers that are kept from step to step."""
        return self.direction.remembers + self.combine.remembers

    def check_bases(self, bases: Bases) -> None:
        """Raise ValueError if the bases cannot supply what a part needs."""
        self.direction.check_bases(bases)
        check_beside(self.combine, bases)

    @property
    def loss_scale_matters(self) -> bool:
        """Whether the perturbation depends on the scale of the loss, and not on the gradient's direction alone."""
        return self.radius.needs_slope or self.metric.needs_gradient


@dataclass(frozen=True)
class Reached:
    """How far a climb went: worked out when somebody asks."""

    rho: Tensor | float
    length: Tensor
    skip: Tensor

    def __call__(self) -> Tensor:
        return torch.where((self.length > 0) & (self.skip == 0), self.rho, 0.0)


class Climb(NamedTuple):
    """A perturbation about to be made: ``w <- w + coefficient * u``, unless ``skip`` is 1."""

    u: Vector
    coefficient: Tensor
    skip: Tensor
    downhill: bool  # u is what the base descends along, not a gradient
    slope: Tensor | None
    rho: Reached
    sigma: float
    capped: Tensor | float


def climb(parts: Parts, ascent: Ascent, keep_gradient: bool) -> Climb:
    """Work out the perturbation. Overwrites the gradient unless ``keep_gradient``; leaves the weights alone.

    Two work buffers at most: "backup" (free until the weights go there) holds the metric's root, "direction" holds
    ``u`` where it is neither the gradient nor a remembered vector.
    """
    space, memory, g = ascent.space, ascent.memory, ascent.g
    root = parts.metric.root(space, space.weights(), g, out=memory.scratch("backup").vector(space))
    way = parts.direction.vector(replace(ascent, root=root))
    u, length, slope = way.u, way.length, way.slope
    along_gradient = u is g

    if root is not None:
        if not (along_gradient and not keep_gradient) and not memory.holds("direction", u):
            u = ascent.work()
            space.copy_(u, way.u)
        space.multiply_(u, root)
        length = space.norm(u) if length is None else length
        space.multiply_(u, root)
    elif length is None:
        length = given(ascent.g_norm) if along_gradient else space.norm(u)

    if way.slope_by_length is not None:
        slope = length * way.slope_by_length
    elif slope is not None or along_gradient or (parts.radius.needs_slope and g is not None):
        if slope is None:  # <g, P g> / sqrt(g' P g), or as it is
            slope = length if along_gradient else space.dot(given(g), u, memory.scratch("backup")) / length
        if ascent.share < 1:
            slope = slope * ascent.share  # of the batch, through the samples that were seen alone
    elif parts.radius.needs_slope:
        slope = length  # an estimate, for a radius that takes one

    rho, sigma, capped = parts.radius(space.scalar(float("nan")) if slope is None else slope, ascent.step)
    if parts.subset is not None and not parts.radius.needs_slope:
        rho = parts.subset.reach(rho)
    coefficient = (rho if way.sign == 1.0 else -rho) / length
    skip = not_finite(length)
    return Climb(
        u=u,
        coefficient=coefficient.nan_to_num(0.0, 0.0, 0.0),  # no way up at a zero gradient
        skip=skip,  # and none to be trusted at a non-finite one
        downhill=way.downhill,
        slope=slope,
        rho=Reached(rho, length, skip),
        sigma=sigma,
        capped=capped,
    )


def not_finite(scalar: Tensor) -> Tensor:
    """1 where ``scalar`` is infinite or NaN, else 0: the form in which fused kernels take a reason to skip."""
    return (scalar * 0.0).nan_to_num(nan=1.0)
