"""Directions: which vector to climb."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ._arithmetic import Space, Vector
from ._bases import Bases
from ._memory import Memory
from .schedules import Scalar, checked, value_at


@dataclass(frozen=True)
class Ascent:
    """What a direction may look at: the gradient at ``w``, its length, and what earlier steps left behind."""

    step: int
    space: Space
    memory: Memory
    g: Vector | None  # None in a one-pass step
    g_norm: Tensor | None
    bases: Bases
    root: Vector | None = None  # T of the metric P = T^2; None where it is the identity
    share: float = 1.0  # of the batch, that g is of

    def work(self) -> Vector:
        """A work buffer to write ``u`` into."""
        return self.memory.scratch("direction").vector(self.space)

    def gradient_length(self) -> Tensor:
        """``sqrt(g' P g) = |T g|``, computed in the work buffer."""
        if self.root is None:
            return given(self.g_norm)
        scaled = self.work()
        self.space.copy_(scaled, given(self.g))
        self.space.multiply_(scaled, self.root)
        return self.space.norm(scaled)


class Way(NamedTuple):
    """A way up: climb ``w + rho * sign * P u / length``."""

    u: Vector
    length: Tensor | None = None  # sqrt(u' P u) unless given
    slope: Tensor | None = None  # <g, eps_hat>, where the direction knows it
    slope_by_length: float | None = None  # or estimates it as a multiple of the length
    sign: float = 1.0  # -1 to climb against u
    downhill: bool = False  # u is what the base descends along, ``maximize`` included; not a gradient


class Direction(ABC):
    """Names the vector ``u`` to climb and says what is known about it."""

    #: closure calls in a step
    passes: int = 2
    #: names of the buffers remembered from step to step
    remembers: tuple[str, ...] = ()
    #: whether ``<g, u>`` is known before the second pass
    slope_known: bool = True
    #: whether ``u`` stands for the gradient to come, so that its length is an estimate of the slope along it
    slope_estimated: bool = False
    #: whether it adds up gradients of several steps, which a loss scaler may have scaled differently
    averages: bool = False
    #: whether ``<g, u>`` can be zero where ``g`` is not
    slope_vanishes: bool = False

    def check_bases(self, bases: Bases) -> None:  # noqa: B027 -- most directions take any base
        """Raise ValueError if the bases cannot supply what this direction needs."""

    def takes_part(self, parameter: Tensor, memory: Memory, bases: Bases) -> bool:
        """Whether ``parameter`` is perturbed in this step."""
        return parameter.grad is not None

    def refuse_missing(self, parameters: Sequence[Tensor], bases: Bases) -> None:  # noqa: B027
        """Raise RuntimeError if these do not take part because of what the bases are."""

    @abstractmethod
    def vector(self, ascent: Ascent) -> Way:
        """The way up, its vector either written into ``ascent.work()`` or one that exists already."""

    def learn_before(self, ascent: Ascent) -> None:  # noqa: B027 -- most directions learn nothing
        """Draft what the gradient at ``w`` teaches, once the perturbation is made."""

    def learn_after(  # noqa: B027
        self, space: Space, memory: Memory, g_hat: Vector, step: int, scale: float | Tensor
    ) -> None:
        """Draft what the gradient at ``w + eps`` teaches, with the weights back at ``w``.

        ``g_hat`` is ``scale`` times the gradient of the loss, where the length of what is learnt matters; else 1.
        """

    def refresh_due(self, step: int) -> bool:
        """Whether this step starts with a refresh from extra gradients."""
        return False

    def refresh(self, space: Space, memory: Memory, gradient: Callable[[Vector, float], Vector]) -> None:
        """Draft new values from extra gradients, ``gradient(v, h)`` at ``w + h v``."""
        raise RuntimeError(f"{self!r} has nothing to refresh; only TopEigenvector has")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Gradient(Direction):
    """The gradient of the mini-batch loss at ``w``: the steepest way up (Foret et al., ICLR 2021).

    Example:
        >>> Gradient()
        Gradient()
    """

    def vector(self, ascent: Ascent) -> Way:
        return Way(given(ascent.g))


class Noise(Direction):
    r"""The gradient minus its running average, ``d = g - weight * m`` (Friendly-SAM; Li et al., CVPR 2024).

    The average that is subtracted is that of earlier steps; it then learns the raw gradient,
    ``m <- decay * m + (1 - decay) * g``. A parameter's first step has no average yet: ``d = g``, then ``m = g``.

    Example:
        >>> Noise(weight=1.0, decay=0.9)
        Noise(weight=1.0, decay=0.9)
    """

    remembers = ("average",)
    slope_vanishes = True

    def __init__(self, weight: Scalar = 1.0, decay: Scalar = 0.9) -> None:
        self.weight = checked("weight", weight)
        self.decay = checked("decay", decay, 0.0, 1.0)

    def vector(self, ascent: Ascent) -> Way:
        space, d = ascent.space, ascent.work()
        space.copy_(d, given(ascent.g))
        space.add_(d, ascent.memory.recall("average", space), -value_at(self.weight, ascent.step))
        return Way(d)

    def learn_before(self, ascent: Ascent) -> None:
        space, memory = ascent.space, ascent.memory
        decay = value_at(self.decay, ascent.step)
        weights = [1.0 - decay if memory.knows("average", p) else 1.0 for p in space.parameters]
        space.lerp_(memory.draft("average", space), given(ascent.g), weights)

    def __repr__(self) -> str:
        return f"Noise(weight={self.weight!r}, decay={self.decay!r})"


class TopEigenvector(Direction):
    r"""The gradient, bent towards the Hessian's top eigenvector ``v`` (Eigen-SAM; Luo et al., NeurIPS 2024).

    ``form="official"``, with ``u = g / |g|``:

    .. math:: \hat\epsilon = u + \alpha\,\mathrm{sign}\langle g, v\rangle\,(v - \langle u, v\rangle u),

    which is not rescaled to length one. Its slope is ``|g|``, since the added part is orthogonal to ``g``.
    ``form="top"`` is :math:`\hat\epsilon = \mathrm{sign}\langle g, v\rangle\, v`, as in the LE-SAM paper's appendix.

    ``v`` is found by ``iterations`` power iterations, warm-started, at steps ``t > 0`` with ``t % every == 0``.
    Products with the Hessian are central differences of the gradient, :math:`H v \approx (\nabla L(w + h v) -
    \nabla L(w - h v)) / 2h` with ``h`` the cube root of the machine epsilon, so each costs two closure calls and works
    with any model. Before the first refresh the direction is the gradient.

    Example:
        >>> TopEigenvector(alpha=0.2).refresh_due(0), TopEigenvector(alpha=0.2, every=10).refresh_due(20)
        (False, True)
    """

    remembers = ("eigenvector",)

    def __init__(
        self, alpha: Scalar = 0.2, every: int = 100, iterations: int = 5, form: str = "official", seed: int = 0
    ) -> None:
        self.alpha = checked("alpha", alpha)
        for name, number in (("every", every), ("iterations", iterations)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ValueError(f"{name} must be a whole number >= 1, got {number!r}")
        if form not in ("official", "top"):
            raise ValueError(f'form must be "official" or "top", got {form!r}')
        self.every, self.iterations, self.form, self.seed = every, iterations, form, seed
        self.slope_vanishes = form == "top"

    def vector(self, ascent: Ascent) -> Way:
        space, memory, g = ascent.space, ascent.memory, given(ascent.g)
        if not any(memory.knows("eigenvector", p) for p in space.parameters):
            return Way(g)
        v = memory.recall("eigenvector", space)
        length = ascent.gradient_length()
        g_norm, g_v = given(ascent.g_norm), space.dot(g, v, memory.scratch("direction"))
        u = ascent.work()
        if self.form == "top":
            space.copy_(u, v)
            space.scale_(u, g_v.sign())
            return Way(u)
        # |g| * (u + alpha * sign * (v - <u,v> u)), gathered by g and v
        alpha = value_at(self.alpha, ascent.step)
        space.copy_(u, g)
        space.scale_(u, 1.0 - alpha * torch.where(g_norm > 0, g_v.abs() / g_norm, 0.0))
        space.add_(u, v, alpha * g_v.sign() * g_norm)
        # In the Euclidean metric the added part is orthogonal to g.
        return Way(u, length=length, slope=g_norm if ascent.root is None else None)

    def refresh_due(self, step: int) -> bool:
        return step > 0 and step % self.every == 0

    def start(self, space: Space) -> list[Tensor]:
        """The unit vector the first power iteration starts from; equal on all workers, apart from shards."""
        sharded = any(kind.shard_groups for kind in space.kinds)
        generator = torch.Generator("cpu").manual_seed(self.seed + (dist.get_rank() if sharded else 0))
        weights = [tensor for tensors in space.weights() for tensor in tensors]
        draws = [torch.randn(w.shape, generator=generator, dtype=torch.float32, device="cpu").to(w) for w in weights]
        # back from the order of kinds to the order of parameters
        indices = [index for indices in space.order for index in indices]
        ordered = [draw for _, draw in sorted(zip(indices, draws, strict=True), key=lambda pair: pair[0])]
        vector = space.vector(ordered)
        space.scale_(vector, 1.0 / space.norm(vector))
        return ordered

    def difference(self, space: Space) -> float:
        """The ``h`` of the central differences: the cube root of the coarsest parameter's machine epsilon."""
        return math.pow(max(torch.finfo(kind.dtype).eps for kind in space.kinds), 1 / 3)

    def refresh(self, space: Space, memory: Memory, gradient: Callable[[Vector, float], Vector]) -> None:
        fresh = not any(memory.knows("eigenvector", p) for p in space.parameters)
        v, uphill = memory.draft("eigenvector", space), memory.scratch("direction").vector(space)
        if fresh:
            space.copy_(v, space.vector(self.start(space)))
        h = self.difference(space)
        for _ in range(self.iterations):
            space.copy_(uphill, gradient(v, h))
            space.add_(uphill, gradient(v, -h), -1.0)
            length = space.norm(uphill)  # 2h |Hv|; a flat direction (or a non-finite one) keeps the old v
            found = torch.isfinite(length) & (length > 0)
            space.scale_(uphill, torch.where(found, 1.0 / length, 0.0))
            space.scale_(v, torch.where(found, 0.0, 1.0))
            space.add_(v, uphill, 1.0, skip=(~found).to(length.dtype))

    def __repr__(self) -> str:
        return (
            f"TopEigenvector(alpha={self.alpha!r}, every={self.every!r}, iterations={self.iterations!r}, "
            f"form={self.form!r})"
        )


Something = TypeVar("Something")


def given(value: Something | None) -> Something:
    """``value``, which a two-pass step has."""
    if value is None:
        raise RuntimeError("this direction needs the gradient at w, and this step has none")
    return value
