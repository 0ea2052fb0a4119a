"""Several processes: who averages gradients, when they communicate, and what cannot be split between them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from ._arithmetic import Space
from ._memory import Memory


def workers(model: nn.Module | None) -> Any:
    """The process group over which a model's gradients are averaged; None if it has none."""
    return model.process_group if isinstance(model, nn.parallel.DistributedDataParallel) else None


def unsynchronised(model: nn.Module | None) -> AbstractContextManager[None]:
    """A pass whose gradients stay on their worker: DistributedDataParallel's ``no_sync``, else nothing."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return model.no_sync()
    return nullcontext()


def may_wait(model: nn.Module | None, first_step: bool) -> bool:
    """Whether a backward may leave out communication: the very first of a static graph may not."""
    static = isinstance(model, nn.parallel.DistributedDataParallel) and model.static_graph
    return not (static and first_step)


def average(space: Space, memory: Memory, group: Any) -> None:
    """What DistributedDataParallel does in a backward, for gradients combined on each worker by itself."""
    buffer = memory.product()
    if len(space.parameters) < len(buffer.space.parameters):
        buffer.clear()
    space.copy_(buffer.vector(space), space.gradients())
    for flat in buffer.flat.values():
        dist.all_reduce(flat, group=group)
    space.copy_(space.gradients(), buffer.vector(space))
    space.scale_(space.gradients(), 1.0 / dist.get_world_size(group))


def agreed(scalar: Tensor, group: Any) -> Tensor:
    """The mean of a 0-d tensor over the workers, the same number on each: for what all have to decide alike."""
    if group is not None:
        dist.all_reduce(scalar, group=group)
        scalar = scalar / dist.get_world_size(group)
    return scalar


def refuse_flattened(parameters: Iterable[Tensor], model: nn.Module | None) -> None:
    """Refuse FSDP1: each of its processes sees a shard and takes that shard's norm for the whole gradient's."""
    # By name, since importing torch.distributed.fsdp to test for its class takes seconds.
    kinds = {kind.__name__ for module in (model.modules() if model is not None else ()) for kind in type(module).mro()}
    flattened = [*parameters, *(model.parameters() if model is not None else ())]  # the latter replace the former
    if "FullyShardedDataParallel" in kinds or any(getattr(p, "_fsdp_flattened", False) for p in flattened):
        raise RuntimeError(
            "the parameters belong to FullyShardedDataParallel (FSDP1), whose processes each see a part of every "
            "gradient as if it were the whole. Shard with FSDP2, torch.distributed.fsdp.fully_shard(model); in "
            "Accelerate: FullyShardedDataParallelPlugin(fsdp_version=2), in Lightning: ModelParallelStrategy"
        )


def refuse_local(space: Space, model: nn.Module | None) -> None:
    """Refuse ``perturbation="local"`` where there is no such thing."""
    if any(kind.shard_groups for kind in space.kinds):
        raise RuntimeError(
            'perturbation="local" cannot be used with sharded parameters (FSDP): every worker holds only a part of '
            'each gradient, so there is no perturbation of its own. Use perturbation="global"'
        )
    if isinstance(model, nn.parallel.DistributedDataParallel) and model.static_graph:
        raise RuntimeError(
            'perturbation="local" cannot be used with DistributedDataParallel(static_graph=True), whose backwards must '
            'all communicate. Leave out static_graph, or use perturbation="global"'
        )
    if model is None and dist.is_initialized() and dist.get_world_size() > 1:
        raise RuntimeError('perturbation="local" with several processes needs model=, to run pass one unsynchronised')


def refuse_drift(model: nn.Module | None) -> None:
    """Refuse a first gradient of this worker alone that no reduction of the second pass has taken along."""
    if workers(model) is not None:
        raise RuntimeError(
            "a parameter had a gradient in the first pass of this worker and none in the second, so that the workers "
            'would drift apart: use perturbation="global"'
        )
