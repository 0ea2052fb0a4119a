"""Float32 room for half-precision tensors, one chunk of the model at a time.

Products of two float16 gradients underflow, and rounding to bfloat16 at random needs the bits below, so both are done
in float32. A float32 copy of a model is as large as two half-precision ones; two buffers that hold a third of the model
each are as large as 4/3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

#: chunks that a model is worked through in: more cost operations, fewer cost memory
COUNT = 3
#: devices on which a storage can be emptied and filled again under its views; on others the room is kept
CAN_BE_FREED = ("cpu", "cuda")


class Piece(NamedTuple):
    """A parameter, or a part of it, and its places in the two buffers."""

    parameter: Tensor
    part: int
    left: Tensor
    right: Tensor


@dataclass
class Chunk:
    """Pieces that are worked on together: two flat float32 tensors, and the bits of both as integers."""

    number: int
    pieces: list[Piece]
    left: Tensor
    right: Tensor

    def __post_init__(self) -> None:
        self.left_bits, self.right_bits = self.left.view(torch.int32), self.right.view(torch.int32)


class Chunks:
    """The room, and which part of which parameter goes where in it.

    Tensors are cut along their longest dimension. The views are made once and only the memory under them comes and
    goes, so the number of operations in a step does not depend on the number of tensors.

    Example:
        >>> w = torch.zeros(2, 6, dtype=torch.bfloat16)
        >>> chunks = Chunks([w], [w])
        >>> [tuple(part.shape) for part in chunks.parts({w: w})[w]]
        [(2, 3), (2, 3)]
    """

    def __init__(self, parameters: Sequence[Tensor], shards: Sequence[Tensor]) -> None:
        """``shards`` are the parts of ``parameters`` that this process holds, all on one device."""
        total = sum(shard.numel() for shard in shards)
        thickest = max((shard.numel() // _length(shard) for shard in shards if shard.numel()), default=0)
        # A chunk is full when less than one slice fits in: with a slice to spare it then holds its share of the whole.
        capacity = min(total, -(-total // COUNT) + thickest)
        self._both = torch.empty(2, capacity, device=shards[0].device, dtype=torch.float32)
        self._cuts: dict[Tensor, tuple[list[int], int]] = {}  # lengths of the parts, along which dimension
        self.chunks: list[Chunk] = []
        left, right = self._both
        pieces: list[Piece] = []
        used = 0
        for parameter, shard in zip(parameters, shards, strict=True):
            lengths: list[int] = []
            while shard.numel() and sum(lengths) < _length(shard):
                slice_size = shard.numel() // _length(shard)
                length = min(_length(shard) - sum(lengths), (capacity - used) // slice_size)
                if length == 0:
                    self.chunks.append(Chunk(len(self.chunks), pieces, left[:used], right[:used]))
                    pieces, used = [], 0
                    continue
                part = shard if length == _length(shard) else shard.narrow(_longest(shard), 0, length)
                pieces.append(Piece(parameter, len(lengths), _view(left, used, part), _view(right, used, part)))
                lengths.append(length)
                used += length * slice_size
            if len(lengths) > 1:
                self._cuts[parameter] = lengths, _longest(shard)
        self.chunks.append(Chunk(len(self.chunks), pieces, left[:used], right[:used]))
        self._bytes = self._both.untyped_storage().nbytes()
        self._resize(0)

    def parts(self, tensors: Mapping[Tensor, Tensor]) -> dict[Tensor, Sequence[Tensor]]:
        """Each tensor in the parts that its parameter goes through the chunks in."""
        cuts = self._cuts
        return {p: tensor.split_with_sizes(*cuts[p]) if p in cuts else (tensor,) for p, tensor in tensors.items()}

    @contextmanager
    def room(self) -> Iterator[list[Chunk]]:
        """The chunks, with memory under them; its content means nothing on the way in."""
        self._resize(self._bytes)
        try:
            yield self.chunks
        finally:
            self._resize(0)

    def _resize(self, size: int) -> None:
        # FullyShardedDataParallel frees gathered parameters in the same way.
        if self._both.device.type in CAN_BE_FREED:
            self._both.untyped_storage().resize_(size)


def cut(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same numbers in tensors none of which is much more than a quarter of them all."""
    limit = -(-sum(tensor.numel() for tensor in tensors) // 4)
    found: list[Tensor] = []
    for tensor in tensors:
        if tensor.numel() <= max(1, limit):
            found.append(tensor)
        else:
            found += tensor.chunk(-(-tensor.numel() // limit), _longest(tensor))
    return found


def _longest(tensor: Tensor) -> int:
    return max(range(tensor.ndim), key=lambda dim: tensor.shape[dim])


def _length(tensor: Tensor) -> int:
    """Of the longest dimension."""
    return max(tensor.shape, default=1)


def _view(flat: Tensor, start: int, like: Tensor) -> Tensor:
    """The numbers of ``flat`` from ``start``, in the shape of ``like`` and the order its memory has."""
    strides = torch.empty_like(like, device="meta").stride()
    return flat.as_strided(like.shape, strides, flat.storage_offset() + start)
