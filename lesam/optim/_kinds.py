"""What a tensor is to the arithmetic: the real numbers of it that this process holds, and its kind of kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

#: dtypes too narrow for products and sums of many numbers, which are then done in float32
HALF = (torch.bfloat16, torch.float16)


def local(tensor: Tensor) -> Tensor:
    """The real numbers of ``tensor`` that this process holds, in the same storage.

    That is the tensor itself, a DTensor's shard, or the view of a complex tensor with a last dimension for the real and
    the imaginary part.
    """
    # Asked by name, since importing torch.distributed.tensor only to test for DTensor doubles `import lesam`.
    to_local = getattr(tensor, "to_local", None)
    held: Tensor = tensor if to_local is None else to_local()
    return torch.view_as_real(held) if held.is_complex() else held


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
    dtype: torch.dtype  # of the real numbers, where a tensor is complex
    shard_groups: tuple[Any, ...]  # process groups over which a tensor of this kind is split

    @classmethod
    def of(cls, tensor: Tensor) -> Kind:
        """The kind of a parameter; a DTensor is split over the mesh dimensions whose placement is a shard."""
        mesh: Any = getattr(tensor, "device_mesh", None)
        if mesh is None:
            return cls(tensor.device, tensor.dtype.to_real(), ())
        placements: Any = tensor.placements  # type: ignore[attr-defined]
        groups = tuple(mesh.get_group(i) for i, placement in enumerate(placements) if placement.is_shard())
        return cls(tensor.device, tensor.dtype.to_real(), groups)

    def total(self, partial: Tensor) -> Tensor:
        """Sum over the processes that share the tensors of this kind."""
        for group in self.shard_groups:
            dist.all_reduce(partial, group=group)
        return partial
