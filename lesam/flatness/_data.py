"""The data a measure is taken on: batches that are the same in every pass, or an error that says they are not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

_SAMPLED_ELEMENTS = 4096


class Batch(NamedTuple):
    """One piece of the data, on the model's device, with the number of samples that weighs it."""

    input: Any
    target: Any
    samples: int


def map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Apply `function` to every tensor of nested tuples, lists and mappings; leave everything else alone."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return {key: map_tensors(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(function, value) for value in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(map_tensors(function, value) for value in tree)
    return tree


def tensors_of(tree: Any) -> list[Tensor]:
    """All tensors of a nested structure, in order."""
    found: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(collect, tree)
    return found


def sample_count(input: Any, target: Any) -> int:
    """Size of the first dimension of the first tensor that has one."""
    for tensor in tensors_of((input, target)):
        if tensor.ndim > 0:
            return tensor.shape[0]
    raise ValueError("a batch holds no tensor with a sample dimension; data must yield (input, target) tensors")


def rows(batch: Batch, start: int, stop: int) -> Batch:
    """The samples `start` to `stop` of a batch."""

    def cut(tensor: Tensor) -> Tensor:
        return tensor[start:stop] if tensor.ndim and tensor.shape[0] == batch.samples else tensor

    stop = min(stop, batch.samples)
    return Batch(map_tensors(cut, batch.input), map_tensors(cut, batch.target), stop - start)


def twice(batch: Batch) -> Batch:
    """A batch that holds every sample of `batch` two times."""

    def double(tensor: Tensor) -> Tensor:
        return torch.cat((tensor, tensor)) if tensor.ndim and tensor.shape[0] == batch.samples else tensor

    return Batch(map_tensors(double, batch.input), map_tensors(double, batch.target), 2 * batch.samples)


def _mark(input: Any, target: Any) -> Tensor:
    """A cheap checksum: the sum of each tensor and a position-weighted sum of some of its elements.

    The weighted sum sees what the plain sum cannot, such as a mirrored image. An odd stride keeps the sampled
    elements from all lying in one column.
    """
    sums = []
    for tensor in tensors_of((input, target)):
        flat = tensor.detach().reshape(-1)
        sampled = flat[:: max(1, flat.numel() // _SAMPLED_ELEMENTS) | 1].to(torch.float64)
        weights = torch.arange(1, sampled.numel() + 1, dtype=torch.float64, device=flat.device).cos()
        sums += [flat.sum(dtype=torch.float64), sampled @ weights]
    return torch.stack(sums).cpu()


class Batches:
    """Batches of `(input, target)` that can be read any number of times and are checked to stay the same.

    A single pair of tensors is one batch; an iterator that can be read only once is copied into memory; any
    other iterable, such as a `DataLoader`, is read anew in each pass and compared with the first.
    """

    def __init__(self, data: Iterable[Any], batch_size: int | None, device: torch.device) -> None:
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1 or None, got {batch_size}")
        if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
            data = [data]
        elif isinstance(data, Iterator):
            data = list(data)
        self._data = data
        self._batch_size = batch_size
        self._device = device
        self._marks = [_mark(*self._pair(item, index)) for index, item in enumerate(data)]
        if not self._marks:
            raise ValueError("data is empty: it must yield at least one (input, target) batch")
        sizes = [batch.samples for batch in self]
        self.samples = sum(sizes)
        self.count = len(sizes)
        self.largest = max(sizes)
        if not self.samples:
            raise ValueError("every batch of data is empty")

    @property
    def checksum(self) -> float:
        """One number for the whole of the data, to recognise it in a later session."""
        return float(sum((index + 1) * mark.nan_to_num().sum() for index, mark in enumerate(self._marks)))

    def __iter__(self) -> Iterator[Batch]:
        seen = 0
        for index, item in enumerate(self._data):
            input, target = self._pair(item, index)
            if index >= len(self._marks) or not _same(_mark(input, target), self._marks[index]):
                raise self._changed(f"batch {index} differs from the one of the first pass")
            seen += 1
            whole = Batch(input, target, sample_count(input, target))
            size = self._batch_size or max(whole.samples, 1)
            for start in range(0, whole.samples, size):
                piece = rows(whole, start, start + size)
                yield Batch(self._move(piece.input), self._move(piece.target), piece.samples)
        if seen != len(self._marks):
            raise self._changed(f"{seen} batches instead of the {len(self._marks)} of the first pass")

    def _move(self, tree: Any) -> Any:
        return map_tensors(lambda tensor: tensor.to(self._device, non_blocking=True), tree)

    @staticmethod
    def _pair(item: Any, index: int) -> tuple[Any, Any]:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(f"data must yield (input, target) pairs, but item {index} is a {type(item).__name__}")
        sample_count(item[0], item[1])
        return item[0], item[1]

    @staticmethod
    def _changed(what: str) -> ValueError:
        return ValueError(
            f"data changes between passes: {what}. A shuffling loader or random augmentation makes every product "
            "belong to another function; use shuffle=False without augmentation, or freeze one pass with list(loader)"
        )


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
