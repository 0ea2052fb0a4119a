"""An orthonormal set of long vectors, kept on the device, in CPU memory or on disk."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Storage = Literal["device", "cpu"] | Path
"""Where vectors of the model's size are kept: beside the model, in main memory, or in a file of a folder."""
_ROWS = 16


class Basis:
    """Rows `q_1, ..., q_m`, stored in blocks of rows so that projections are matrix-vector products.

    Args:
        size: Length of a vector.
        like: A tensor with the dtype and device of the vectors.
        storage: "device", "cpu", or a folder: there the rows are memory-mapped files, removed with the basis.
    """

    def __init__(self, size: int, like: Tensor, storage: Storage = "device") -> None:
        if isinstance(storage, str) and storage not in ("device", "cpu"):
            raise ValueError(f'storage must be "device", "cpu" or a pathlib.Path, got {storage!r}')
        self._size, self._dtype, self._storage = size, like.dtype, storage
        self._device = like.device if storage == "device" else torch.device("cpu")
        self._folder = None
        if isinstance(storage, Path):
            storage.mkdir(parents=True, exist_ok=True)
            self._folder = TemporaryDirectory(dir=storage, prefix="basis-")
        self._blocks: list[Tensor] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, vector: Tensor) -> None:
        """Add a row; the caller has made it orthonormal to the others."""
        if self._count == _ROWS * len(self._blocks):
            self._blocks.append(self._new_block())
        self._blocks[-1][self._count % _ROWS].copy_(vector)
        self._count += 1

    def extend(self, vectors: Tensor) -> None:
        """Add several rows."""
        for vector in vectors:
            self.append(vector)

    def project_out(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """`(w - Q'Qw, Qw)`, applied twice: once leaves rounding errors the size of what was removed."""
        removed = torch.zeros(self._count, dtype=torch.float64)
        if not self._count:
            return vector, removed
        w = vector.to(self._device)
        for _ in range(2):
            coefficients = [block @ w for block in self._filled()]
            for block, c in zip(self._filled(), coefficients, strict=True):
                w = torch.addmv(w, block.T, c, alpha=-1)
            removed += torch.cat(coefficients).double().cpu()
        return w.to(vector.device), removed

    def combine(self, weights: Tensor) -> Tensor:
        """Rows `weights @ Q` for weights of shape `(r, m)`, on the storage's device."""
        total = torch.zeros(weights.shape[0], self._size, dtype=self._dtype, device=self._device)
        for block, part in zip(self._filled(), torch.split(weights, _ROWS, dim=1), strict=True):
            total.addmm_(part.to(self._device, self._dtype), block)
        return total

    def rotate(self, orthogonal: Tensor) -> None:
        """Replace the rows by `orthogonal @ Q`."""
        rotated = self.combine(orthogonal)
        for block, part in zip(self._filled(), torch.split(rotated, _ROWS), strict=True):
            block.copy_(part)

    def rows(self, indices: list[int]) -> Tensor:
        """Copies of some rows, in CPU memory."""
        picked = [self._blocks[i // _ROWS][i % _ROWS].cpu() for i in indices]
        return torch.stack(picked) if picked else torch.empty(0, self._size, dtype=self._dtype)

    def close(self) -> None:
        """Free memory and files."""
        self._blocks, self._count = [], 0
        if self._folder is not None:
            self._folder.cleanup()

    def _filled(self) -> list[Tensor]:
        last = self._count - _ROWS * (len(self._blocks) - 1)
        return [*self._blocks[:-1], self._blocks[-1][:last]]

    def _new_block(self) -> Tensor:
        shape = (_ROWS, self._size)
        if self._folder is None:
            return torch.empty(shape, dtype=self._dtype, device=self._device)
        path = Path(self._folder.name) / f"rows-{len(self._blocks)}"
        kind = str(self._dtype).removeprefix("torch.")
        return torch.from_numpy(np.memmap(path, dtype=kind, mode="w+", shape=shape))
