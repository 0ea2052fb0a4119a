"""Arithmetic on whole models: every ``torch._foreach_*`` call of the library lives in this file.

A *vector* is a model-sized quantity (weights, a gradient, an average), stored as lists of tensors, one list
for each *kind*: tensors that share device, dtype and sharding can go through one multi-tensor kernel. A complex tensor
takes part as the real numbers it is made of, so lengths and inner products are those of ``R^2``: ``Re <x, y>``. No
function here reads a value on the host, so a step queues its work on a GPU and never waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ._chunks import COUNT, Chunk, Chunks, cut
from ._kinds import HALF, Kind, local

Vector = list[list[Tensor]]


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
        self._complex = [parameter for parameter in self.parameters if parameter.is_complex()]
        self._plain = not self._complex and not any(hasattr(parameter, "to_local") for parameter in self.parameters)
        self._chunks: dict[Kind, Chunks] = {}

    # ------------------------------------------------------------------ making vectors

    def vector(self, tensors: Sequence[Tensor]) -> Vector:
        """``tensors`` (one per parameter, in order) as a vector of this space."""
        held = tensors if self._plain else [local(tensor) for tensor in tensors]
        return [[held[index] for index in indices] for indices in self.order]

    def weights(self) -> Vector:
        return self.vector(self.parameters)

    def gradients(self) -> Vector:
        """The ``.grad`` fields; every parameter of the space has one."""
        for parameter in self._complex:
            # autograd may leave a conjugate that is yet to be worked out, and of which there is no real view
            if parameter.grad is not None and parameter.grad.is_conj():
                parameter.grad = parameter.grad.resolve_conj()
        return self.vector([parameter.grad for parameter in self.parameters])  # type: ignore[misc]

    def part(self, x: Vector, space: Space) -> Vector:
        """The part of ``x``, a vector of this space, that belongs to the parameters of ``space``.

        What is done to the part is done to ``x``. So parameters can be treated differently in one step, such as those
        of a base optimizer that ascends.

        Example:
            >>> w, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0])
            >>> both, bias = Space([w, b]), Space([b])
            >>> bias.scale_(both.part(both.weights(), bias), -1.0)
            >>> w, b
            (tensor([1., 2.]), tensor([-3.]))
        """
        pairs = zip(self.order, x, strict=True)
        own = {self.parameters[i]: t for order, tensors in pairs for i, t in zip(order, tensors, strict=True)}
        missing = [tuple(parameter.shape) for parameter in space.parameters if parameter not in own]
        if missing:
            raise ValueError(f"a part can only be taken for parameters of the space, got others of shapes {missing}")
        return [[own[space.parameters[index]] for index in indices] for indices in space.order]

    def scalar(self, value: float | Tensor) -> Tensor:
        """A 0-d tensor on the space's device, made without a copy from the host."""
        if isinstance(value, Tensor):
            return value.to(self.device, self.scalar_dtype)
        return torch.full((), value, device=self.device, dtype=self.scalar_dtype)

    # ------------------------------------------------------------------ reading

    def norm(self, x: Vector) -> Tensor:
        """``|x|``, one number over all tensors, groups, devices and shards."""
        # The CPU widens a tensor before it sums its squares: half-precision ones go in by parts.
        narrow = [cut(xs) if kind.dtype in HALF else xs for kind, xs in zip(self.kinds, x, strict=True)]
        norms = [torch.stack(torch._foreach_norm(tensors, 2, dtype=self.scalar_dtype)) for tensors in narrow]
        if len(norms) == 1 and not self.kinds[0].shard_groups:
            total: Tensor = torch.linalg.vector_norm(norms[0])
            return total
        return self._sum([norm.square().sum() for norm in norms]).sqrt()

    def dot(self, x: Vector, y: Vector, scratch: Scratch) -> Tensor:
        """``<x, y>``; ``scratch`` is overwritten (a product of model size has to live somewhere)."""
        product, partial = scratch.vector(self), []
        for kind, xs, ys, products in zip(self.kinds, x, y, product, strict=True):
            if kind.dtype in HALF:
                chunks = self._in_float32(kind, xs, ys, scratch.space)
                sums = [chunk.left.mul_(chunk.right).sum() for chunk, _, _ in chunks]
                nothing = torch.zeros((), device=kind.device, dtype=torch.float32)
                partial.append(torch.stack(sums or [nothing]).sum(dtype=self.scalar_dtype))
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
            _add_(kind, xs, ys, coefficient, skip)

    def climb_(
        self, x: Vector, y: Vector, coefficient: Tensor, skip: Tensor, seed: int, within: Space | None = None
    ) -> None:
        """``x <- x + coefficient * y`` like :meth:`add_`, with bfloat16 tensors rounded at random, up or down.

        A perturbation is far smaller than the distance between two bfloat16 numbers: rounded to the nearest, most
        weights would not move at all. Rounded up with the probability that makes the mean right, they move by what
        was asked for on average, and so does the loss. A weight that would leave the range of bfloat16 stops at its
        end. Equal seeds give equal draws, on all workers.

        Args:
            x: what is moved.
            y: along which vector.
            coefficient: how far, a 0-d tensor.
            skip: a 0-d tensor; where it is 1, ``x`` stays as it is, bit for bit.
            seed: of the draws.
            within: a space that holds all parameters of this one. Its room to work in is used, which a space that is
                made anew in each step would have to make anew.
        """
        coefficient = self.scalar(coefficient)
        for kind, xs, ys in zip(self.kinds, x, y, strict=True):
            if kind.dtype == torch.bfloat16:
                self._climb_at_random_(kind, xs, ys, coefficient, skip, seed, within or self)
            else:
                _add_(kind, xs, ys, coefficient, skip)

    def _climb_at_random_(
        self, kind: Kind, xs: list[Tensor], ys: list[Tensor], coefficient: Tensor, skip: Tensor, seed: int, room: Space
    ) -> None:
        factor, stay = coefficient.to(kind.device, torch.float32), skip.to(kind.device) > 0
        generator, end = torch.Generator(kind.device), torch.finfo(torch.bfloat16).max
        for chunk, parts, places in self._in_float32(kind, xs, ys, room):
            exact = torch.addcmul(chunk.left, chunk.right, factor, out=chunk.right).clamp_(-end, end)
            torch.where(stay, chunk.left, exact, out=chunk.left)
            # bfloat16 is the upper half of a float32: adding noise below and cutting off rounds at random, and leaves
            # alone what is a bfloat16 number already.
            chunk.right_bits.random_(0, 1 << 16, generator=generator.manual_seed(COUNT * seed + chunk.number))
            chunk.left_bits.add_(chunk.right_bits).bitwise_and_(-(1 << 16))
            torch._foreach_copy_(parts, places)

    def _in_float32(
        self, kind: Kind, xs: list[Tensor], ys: list[Tensor], room: Space
    ) -> Iterator[tuple[Chunk, list[Tensor], list[Tensor]]]:
        """Work through half-precision tensors of one kind: ``xs`` on the left of a chunk, ``ys`` on its right.

        Yields each chunk, the parts of ``xs`` that are in it, and their places on the left.
        """
        if kind not in room._chunks:
            held = [room.parameters[index] for index in room.order[room.kinds.index(kind)]]
            room._chunks[kind] = Chunks(held, [local(parameter) for parameter in held])
        chunks, own = room._chunks[kind], [self.parameters[index] for index in self.order[self.kinds.index(kind)]]
        x, y = (chunks.parts(dict(zip(own, tensors, strict=True))) for tensors in (xs, ys))
        with chunks.room() as filled:
            for chunk in filled:
                pieces = [piece for piece in chunk.pieces if piece.parameter in x]
                if not pieces:
                    continue
                if len(pieces) < len(chunk.pieces):
                    torch._foreach_zero_([chunk.left, chunk.right])
                parts, places = [x[piece.parameter][piece.part] for piece in pieces], [piece.left for piece in pieces]
                torch._foreach_copy_(places, parts)
                torch._foreach_copy_([p.right for p in pieces], [y[p.parameter][p.part] for p in pieces])
                yield chunk, parts, places

    def reflect_(self, x: Vector, y: Vector) -> None:
        """``x <- 2 y - x``."""
        for xs, ys in zip(x, y, strict=True):
            torch._foreach_neg_(xs)
            torch._foreach_add_(xs, ys, alpha=2)

    def scale_(self, x: Vector, factor: float | Tensor) -> None:
        """``x <- factor * x``."""
        for kind, xs in zip(self.kinds, x, strict=True):
            torch._foreach_mul_(xs, factor.to(kind.device) if isinstance(factor, Tensor) else factor)

    def clip_(self, x: Vector, limit: float) -> None:
        """``x <- x * min(1, limit / |x|)``, as ``torch.nn.utils.clip_grad_norm_`` does."""
        self.scale_(x, self.clip_factor(x, limit))

    def clip_factor(self, x: Vector, limit: float) -> Tensor:
        """``min(1, limit / |x|)``."""
        return (limit / (self.norm(x) + 1e-6)).clamp(max=1.0)

    def multiply_(self, x: Vector, y: Vector) -> None:
        """``x <- x * y``, element by element."""
        for xs, ys in zip(x, y, strict=True):
            torch._foreach_mul_(xs, ys)

    def magnitude_(self, x: Vector, y: Vector, offset: float) -> None:
        """``x <- |y| + offset`` on tensors with more than one dimension, ``x <- 1`` on the others."""
        for indices, xs, ys in zip(self.order, x, y, strict=True):
            torch._foreach_copy_(xs, ys)
            # By the parameter's own dimensions: the real view of a complex vector has two.
            many = [t for index, t in zip(indices, xs, strict=True) if self.parameters[index].ndim > 1]
            one = [t for index, t in zip(indices, xs, strict=True) if self.parameters[index].ndim <= 1]
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


def _add_(kind: Kind, xs: list[Tensor], ys: list[Tensor], coefficient: Tensor, skip: Tensor | None) -> None:
    """``x <- x + coefficient * y`` for tensors of one kind, by torch's fused SGD kernel."""
    # The CUDA kernel reads the coefficient as float32; the CPU kernel takes it as it is.
    lr = coefficient.to(kind.device, None if kind.device.type == "cpu" else torch.float32)
    dense = [_dense(x) for x in xs]
    torch._fused_sgd_(
        dense,
        [_aligned(y, x) for x, y in zip(dense, ys, strict=True)],
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
    for x, moved in zip(xs, dense, strict=True):
        if moved is not x:
            x.copy_(moved)


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
            # Vectorised kernels want aligned addresses, 16 bytes at the least.
            step = 8 if kind.dtype in HALF else 64
            starts, size = [], 0
            for shard in shards:
                starts.append(size)
                size += -(-shard.numel() // step) * step
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
    # torch._foreach_clone came after torch 2.6; this one copies twice, in as few operations.
    return list(torch.ops.aten._foreach_copy(list(tensors), list(tensors))) if tensors else []


def copy_all_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """``target <- source`` for loose tensors of any kind."""
    if targets:
        torch._foreach_copy_(list(targets), list(sources))
