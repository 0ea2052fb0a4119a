"""Decoding of CIFAR's two file formats: binary records and Python 2 pickles.

Bytes are decoded only after their checksum was found right (see ``cifar``), and pickles even then only by
a reader that can build nothing but arrays, numbers, strings and containers.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lesam.lab.data.splits import TensorSet

PIXELS = 3 * 32 * 32

Decoder = Callable[[bytes], TensorSet]


def decode_binary(data: bytes, label_bytes: int, label: int = -1) -> TensorSet:
    """Decode records of ``label_bytes`` labels, of which one counts, and 3 x 32 x 32 pixels.

    CIFAR-10 has one label, CIFAR-100 a coarse and then a fine one.

    Example:
        >>> decode_binary(bytes([7, 42]) + bytes(3072), label_bytes=2).labels
        tensor([42])
    """
    record = label_bytes + PIXELS
    if not data or len(data) % record:
        raise ValueError(f"{len(data)} bytes are not a whole number of records of {record} bytes")
    records = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, record)
    return _as_set(records[:, label_bytes:], records[:, range(label_bytes)[label]])


def decode_pickle(data: bytes, label_key: bytes) -> TensorSet:
    """Decode a pickled dictionary with ``data``, a uint8 array of N x 3072, and a list of labels."""
    content = _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    if not isinstance(content, dict) or b"data" not in content or label_key not in content:
        raise ValueError(f"not a dictionary with 'data' and {label_key.decode()!r}")
    pixels = content[b"data"]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise ValueError(f"'data' is not a uint8 array of N x {PIXELS}")
    return _as_set(torch.from_numpy(pixels), torch.tensor(content[label_key]))


def _as_set(pixels: Tensor, labels: Tensor) -> TensorSet:
    return TensorSet(pixels.reshape(-1, 3, 32, 32).contiguous(), labels.long())


def _empty_array(kind: type, shape: tuple[int, ...], typecode: bytes) -> np.ndarray[Any, Any]:
    """Stand in for numpy's private function of the same job, whose module moves between versions."""
    if kind is not np.ndarray:
        raise pickle.UnpicklingError(f"an array of class {kind!r} is not allowed")
    return np.ndarray(shape, np.dtype(typecode.decode("ascii")))


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Knows the three names that a pickled array needs and refuses every other."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Return what the pickle asks for, if it is allowed."""
        try:
            return _ALLOWED[module_name, global_name]
        except KeyError:
            message = f"the pickle asks for {module_name}.{global_name}, which is not allowed"
            raise pickle.UnpicklingError(message) from None
