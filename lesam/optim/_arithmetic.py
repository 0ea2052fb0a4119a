"""Arithmetic on whole models: every ``torch._foreach_*`` call of the library lives in this file.

A *vector* is a model-sized quantity (weights, a gradient, an average), stored as lists of tensors, one list
for each *kind*: tensors that share device, dtype and sharding can go through one multi-tensor kernel. No function
here reads a value on the host, so a step queues its work on a GPU and never waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Vector = list[list[Tensor]]


def local(tensor: Tensor) -> Tensor:
    """The part of ``tensor`` this process holds: the tensor itself, or a DTensor's shard (same storage)."""
    # Asked by name, since importing torch.distributed.tensor only to test for DTensor doubles `import lesam`.
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def sharded_like(tensor: Tensor, like: Tensor) -> Tensor:
    """``tensor``, split up the way ``like`` is, if ``like`` is a DTensor and ``tensor`` is not."""
    mesh: Any = getattr(like, "device_mesh", None)
    if mesh is None or getattr(tensor, "device_mesh", None) is not None:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), mesh, like.placements)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Kind:
    """What tensors must share to go through one multi-tensor kernel."""

    device: torch.device
    dtype: torch.dtype
    shard_groups: tuple[Any, ...]  # process groups over which a tensor of this kind is split

    @classmethod
    def of(cls, tensor: Tensor) -> Kind:
        """The kind of a parameter; a DTensor is split over the mesh dimensions whose placement is a shard."""
        mesh: Any = getattr(tensor, "device_mesh", None)
        if mesh is None:
            return cls(tensor.device, tensor.dtype, ())
        placements: Any = tensor.placements  # type: ignore[attr-defined]
        groups = tuple(mesh.get_group(i) for i, placement in enumerate(placements) if placement.is_shard())
        return cls(tensor.device, tensor.dtype, groups)

    def total(self, partial: Tensor) -> Tensor:
        """Sum over the processes that share the tensors of this kind."""
        for group in self.shard_groups:
            dist.all_reduce(partial, group=group)
        return partial


class Space:
    """A list of parameters, sorted by kind, and the arithmetic of vectors that live on them.

    Example:
        >>> w = torch.tensor([3.0, 4.0])
        >>> space = Space([w])
        >>> space.norm(space.weights())
        tensor(5.)
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        by_kind: dict[Kind, list[int]] = {}
        for index, parameter in enumerate(self.parameters):
            by_kind.setdefault(Kind.of(parameter), []).append(index)
        self.kinds = list(by_kind)
        self.order = list(by_kind.values())
        self.device = self.kinds[0].device if self.kinds else torch.device("cpu")
        wide = any(kind.dtype == torch.float64 for kind in self.kinds)
        #: dtype of norms and radii: never below float32, whatever the parameters are
        self.scalar_dtype = torch.float64 if wide else torch.float32
        #: a 0-d tensor where such numbers live
        self.like = torch.zeros((), device=self.device, dtype=self.scalar_dtype)

    # ------------------------------------------------------------------ making vectors

    def vector(self, tensors: Sequence[Tensor]) -> Vector:
        """``tensors`` (one per parameter, in order) as a vector of this space."""
        return [[local(tensors[index]) for index in indices] for indices in self.order]

    def weights(self) -> Vector:
        return self.vector(self.parameters)

    def gradients(self) -> Vector:
        """The ``.grad`` fields; every parameter of the space has one."""
        return self.vector([parameter.grad for parameter in self.parameters])  # type: ignore[misc]

    def scalar(self, value: float | Tensor) -> Tensor:
        """A 0-d tensor on the space's device, made without a copy from the host."""
        if isinstance(value, Tensor):
            return value.to(self.device, self.scalar_dtype)
        return torch.full((), value, device=self.device, dtype=self.scalar_dtype)

    # ------------------------------------------------------------------ reading

    def norm(self, x: Vector) -> Tensor:
        """``|x|``, one number over all tensors, groups, devices and shards."""
        norms = [torch.stack(torch._foreach_norm(tensors, 2, dtype=self.scalar_dtype)) for tensors in x]
        if len(norms) == 1 and not self.kinds[0].shard_groups:
            total: Tensor = torch.linalg.vector_norm(norms[0])
            return total
        return self._sum([norm.square().sum() for norm in norms]).sqrt()

    def dot(self, x: Vector, y: Vector, scratch: Scratch) -> Tensor:
        """``<x, y>``; ``scratch`` is overwritten (a product of model size has to live somewhere)."""
        product, partial = scratch.vector(self), []
        for kind, xs, ys, products in zip(self.kinds, x, y, product, strict=True):
            if kind.dtype == torch.float16:  # whose smallest number is larger than most products of two gradients
                sums = [(a.float() * b.float()).sum() for a, b in zip(xs, ys, strict=True)]
                partial.append(torch.stack(sums).sum())
                continue
            flat = scratch.flat[kind]
            if len(self.parameters) < len(scratch.space.parameters):
                flat.zero_()
            torch._foreach_copy_(products, xs)
            torch._foreach_mul_(products, ys)
            partial.append(flat.sum(dtype=self.scalar_dtype))
        return self._sum(partial)

    def _sum(self, partial: list[Tensor]) -> Tensor:
        """One number from one for each kind, over all processes."""
        totals = [kind.total(one).to(self.device) for kind, one in zip(self.kinds, partial, strict=True)]
        return totals[0] if len(totals) == 1 else torch.stack(totals).sum()

    # ------------------------------------------------------------------ writing

    def copy_(self, x: Vector, y: Vector) -> None:
        """``x <- y``."""
        for xs, ys in zip(x, y, strict=True):
            torch._foreach_copy_(xs, ys)

    def add_(self, x: Vector, y: Vector, coefficient: float | Tensor = 1.0, skip: Tensor | None = None) -> None:
        """``x <- x + coefficient * y``, and nothing at all where the 0-d tensor ``skip`` is 1.

        This is an SGD step uphill with ``lr = coefficient``, so torch's fused SGD kernel does it: a coefficient
        that stays on the device, one rounding (which matters in bf16), no temporary, and a ``skip`` that keeps an
        infinite ``y`` out of ``x`` (0 * inf would not).
        """
        coefficient = self.scalar(coefficient)
        for kind, xs, ys in zip(self.kinds, x, y, strict=True):
            # The CUDA kernel reads the coefficient as float32; the CPU kernel takes it as it is.
            lr = coefficient.to(kind.device, None if kind.device.type == "cpu" else torch.float32)
            dense = [_dense(a) for a in xs]
            torch._fused_sgd_(
                dense,
                [_aligned(b, a) for a, b in zip(dense, ys, strict=True)],
                [],
                weight_decay=0.0,
                momentum=0.0,
                lr=lr,
                dampening=0.0,
                nesterov=False,
                maximize=True,
                is_first_step=False,
                found_inf=None if skip is None else skip.to(kind.device, torch.float32),
            )
            for a, moved in zip(xs, dense, strict=True):
                if moved is not a:
                    a.copy_(moved)

    def climb_(self, x: Vector, y: Vector, coefficient: Tensor, skip: Tensor, seed: int) -> None:
        """``x <- x + coefficient * y`` like :meth:`add_`, with bfloat16 tensors rounded at random, up or down.

        A perturbation is far smaller than the distance between two bfloat16 numbers: rounded to the nearest, most
        weights would not move at all. Rounded up with the probability that makes the mean right, they move by what
        was asked for on average, and so does the loss. Equal seeds give equal draws, on all workers.
        """
        if all(kind.dtype != torch.bfloat16 for kind in self.kinds):
            self.add_(x, y, coefficient, skip)
            return
        for kind, xs, ys in zip(self.kinds, x, y, strict=True):
            if kind.dtype != torch.bfloat16:
                Space(xs).add_([xs], [ys], coefficient, skip)
                continue
            generator = torch.Generator(kind.device).manual_seed(seed)
            factor = coefficient.to(kind.device, torch.float32)
            for a, b in zip(xs, ys, strict=True):
                exact = torch.addcmul(a.float(), b.float(), factor)
                draw = torch.randint(0, 1 << 16, a.shape, generator=generator, device=a.device, dtype=torch.int32)
                # bfloat16 is the upper half of a float32: adding noise below and cutting off rounds at random.
                rounded = ((exact.view(torch.int32) + draw) & -(1 << 16)).view(torch.float32)
                a.copy_(torch.where(skip.to(kind.device) > 0, a.float(), rounded))

    def scale_(self, x: Vector, factor: float | Tensor) -> None:
        """``x <- factor * x``."""
        for kind, xs in zip(self.kinds, x, strict=True):
            torch._foreach_mul_(xs, factor.to(kind.device) if isinstance(factor, Tensor) else factor)

    def multiply_(self, x: Vector, y: Vector) -> None:
        """``x <- x * y``, element by element."""
        for xs, ys in zip(x, y, strict=True):
            torch._foreach_mul_(xs, ys)

    def magnitude_(self, x: Vector, y: Vector, offset: float) -> None:
        """``x <- |y| + offset`` on tensors with more than one dimension, ``x <- 1`` on the others."""
        for xs, ys in zip(x, y, strict=True):
            torch._foreach_copy_(xs, ys)
            many, one = [t for t in xs if t.ndim > 1], [t for t in xs if t.ndim <= 1]
            if many:
                torch._foreach_abs_(many)
                torch._foreach_add_(many, offset)
            if one:
                torch._foreach_zero_(one)
                torch._foreach_add_(one, 1.0)

    def inverse_root_(self, x: Vector, y: Vector, weight: float) -> None:
        """``x <- 1 / sqrt(1 + weight * y^2)``."""
        for xs, ys in zip(x, y, strict=True):
            torch._foreach_copy_(xs, ys)
            torch._foreach_mul_(xs, ys)
            torch._foreach_mul_(xs, weight)
            torch._foreach_add_(xs, 1.0)
            torch._foreach_rsqrt_(xs)

    def lerp_(self, x: Vector, y: Vector, weights: Sequence[float]) -> None:
        """``x <- x + weight * (y - x)`` with one weight for each parameter."""
        for indices, xs, ys in zip(self.order, x, y, strict=True):
            torch._foreach_lerp_(xs, ys, [weights[index] for index in indices])


def _dense(tensor: Tensor) -> Tensor:
    """``tensor``, or a copy of it if there are gaps in its memory: the fused kernels walk raw memory."""
    if tensor.is_contiguous() or torch.empty_like(tensor, device="meta").stride() == tensor.stride():
        return tensor
    return tensor.contiguous()


def _aligned(tensor: Tensor, like: Tensor) -> Tensor:
    """``tensor`` in the memory layout and dtype of ``like``."""
    if tensor.stride() == like.stride() and tensor.dtype == like.dtype:
        return tensor
    return torch.empty_like(like).copy_(tensor)


@dataclass
class Scratch:
    """A model-sized buffer, kept between steps: one flat tensor for each kind, and a view for each parameter."""

    space: Space
    flat: dict[Kind, Tensor] = field(init=False)
    views: dict[Tensor, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.flat, self.views = {}, {}
        for kind, indices in zip(self.space.kinds, self.space.order, strict=True):
            parameters = [self.space.parameters[index] for index in indices]
            shards = [local(parameter) for parameter in parameters]
            # Starting each view at a multiple of 64 elements keeps vectorised kernels on aligned addresses.
            starts, size = [], 0
            for shard in shards:
                starts.append(size)
                size += -(-shard.numel() // 64) * 64
            flat = torch.zeros(size, device=kind.device, dtype=kind.dtype)
            for parameter, shard, start in zip(parameters, shards, starts, strict=True):
                layout = torch.empty_like(shard, device="meta")
                self.views[parameter] = flat.as_strided(shard.shape, layout.stride(), start)
            self.flat[kind] = flat

    def vector(self, space: Space) -> Vector:
        """This buffer as a vector of ``space``, whose parameters are among the buffer's own."""
        return space.vector([self.views[parameter] for parameter in space.parameters])

    def clear(self) -> None:
        """Zero the whole buffer."""
        torch._foreach_zero_(list(self.flat.values()))


def clone_all(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of loose tensors of any kind (BatchNorm's few buffers)."""
    return list(torch._foreach_clone(list(tensors))) if tensors else []


def copy_all_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """``target <- source`` for loose tensors of any kind."""
    if targets:
        torch._foreach_copy_(list(targets), list(sources))
