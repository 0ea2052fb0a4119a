"""Models over several devices by FSDP2: how they are split, and how their parts are kept and put back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as distributed
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from lesam.lab.runs import shards
from lesam.lab.runs.checkpoint import MODEL, OPTIMIZER


def shard(model: nn.Module, mesh: Any) -> nn.Module:
    """Shard the direct children of a model, the members of its lists, and then the rest of it."""
    data = mesh["data_parallel"]
    for part in _parts(model):
        if any(parameter.requires_grad for parameter in part.parameters()):
            fully_shard(part, mesh=data)
    fully_shard(model, mesh=data)
    return model


def _parts(model: nn.Module) -> Iterator[nn.Module]:
    for child in model.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):  # a container without a forward cannot be sharded itself
            yield from _parts(child)
        else:
            yield child


def parts_of(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of which this process has a part, by name, and what is left of the optimizer's state."""
    weights: dict[str, Any] = distributed.get_model_state_dict(model)
    tensors: dict[str, Tensor] = {MODEL + name: tensor for name, tensor in weights.items()}
    state: dict[str, Any] = distributed.get_optimizer_state_dict(model, optimizer)
    left: dict[str, dict[str, Any]] = {}
    for parameter, entries in state["state"].items():
        left[parameter] = {}
        for entry, value in entries.items():
            if isinstance(value, DTensor):
                tensors[f"{OPTIMIZER}{parameter}/{entry}"] = value
            else:
                left[parameter][entry] = value
    return tensors, {**state, "state": left}


def put_back(model: nn.Module, optimizer: Optimizer, folder: Path, left: dict[str, Any]) -> None:
    """The reverse of :func:`parts_of`, from what was written. Collective: every process has to call it."""
    weights: dict[str, Any] = distributed.get_model_state_dict(model)
    tensors: dict[str, Tensor] = {MODEL + name: tensor for name, tensor in weights.items()}
    state: dict[str, dict[str, Any]] = {parameter: dict(entries) for parameter, entries in left["state"].items()}
    for name, dtype in shards.kinds(folder).items():
        if name.startswith(OPTIMIZER):
            parameter, entry = name.removeprefix(OPTIMIZER).split("/")
            # What an optimizer keeps of a parameter is split as the parameter is.
            state[parameter][entry] = tensors[name] = torch.empty_like(weights[parameter], dtype=dtype)
    shards.read(folder, tensors)
    distributed.set_model_state_dict(model, weights)
    whole: Any = {**left, "state": state}
    distributed.set_optimizer_state_dict(model, optimizer, whole)
