"""Tensors that several processes hold in parts: each writes its own, and any number of processes can read them.

The files are safetensors, written and read by :mod:`torch.distributed.checkpoint`, whose other format needs pickle.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save


def write(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the parts of this process. Collective: every process has to call it, with the same names."""
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    save(dict(tensors), storage_writer=writer)


def read(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors, or this process's parts of them. Collective: every process has to call it."""
    load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)))


def kinds(folder: Path) -> dict[str, torch.dtype]:
    """The names of all tensors, and what their numbers are."""
    return {name: found.properties.dtype for name, found in _found(folder).items()}


def whole(folder: Path, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, put together on the CPU, by their names without it."""
    tensors = {
        name: torch.empty(found.size, dtype=found.properties.dtype)
        for name, found in _found(folder).items()
        if name.startswith(prefix)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # a single process is what is meant
        load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def _found(folder: Path) -> dict[str, TensorStorageMetadata]:
    metadata = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {name: found for name, found in metadata.items() if isinstance(found, TensorStorageMetadata)}
