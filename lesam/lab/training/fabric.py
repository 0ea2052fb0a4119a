"""Devices, precision and processes, all through Lightning Fabric."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from lesam.lab.config.run import SystemConfig
from lesam.lab.device import require
from lesam.lab.training.sharding import shard


@contextmanager
def _without(package: str) -> Iterator[None]:
    """An import inside does not find ``package``, unless it is loaded already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


# Fabric imports all of torchmetrics where it is installed, and with it half of torchvision and scipy, to compare its
# version for one class that is not used here: every command would begin seconds later.
with _without("torchmetrics"):
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
    from lightning_fabric.utilities import imports, spike

# That class is there for others all the same: the version is looked at when somebody asks.
for _module in (imports, spike):
    _module._TORCHMETRICS_GREATER_EQUAL_1_0_0 = imports.RequirementCache("torchmetrics>=1.0.0")  # type: ignore[attr-defined]


def make_fabric(system: SystemConfig) -> Fabric:
    """A launched Fabric for the configuration.

    Under ``torchrun`` and ``srun`` the number of processes is what they say; when this process has to start the others
    itself, it is ``devices`` times ``nodes``.
    """
    require(system.accelerator)
    devices: int | Literal["auto"] = "auto" if system.devices == "auto" else _count(system.devices)
    nodes = system.nodes
    if (started := _started_by_others()) is not None:
        nodes, devices = started
    many = nodes > 1 or devices not in (1, "auto")
    strategy: Any = "ddp" if system.strategy == "ddp" or (many and system.strategy == "auto") else "auto"
    if system.strategy == "fsdp":
        world: int | Literal["auto"] = nodes * devices if isinstance(devices, int) else "auto"
        strategy = ModelParallelStrategy(shard, data_parallel_size=world, tensor_parallel_size=1)
    if system.precision == "16-mixed" and not _accelerated(system.accelerator):  # Fabric would take bfloat16
        raise ValueError("system.precision=16-mixed needs a GPU; on a CPU choose bf16-mixed or 32-true")
    with warnings.catch_warnings():
        # On a login node, or where runs are sent by other means, srun is there and not meant.
        warnings.filterwarnings("ignore", "The `srun` command is available")
        fabric = Fabric(
            accelerator=system.accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy=strategy,
            precision=system.precision,
        )
        fabric.launch()
    if system.deterministic:
        torch.use_deterministic_algorithms(True)
    return fabric


def processes(system: SystemConfig) -> int:
    """How many processes would train a run, without launching any.

    >>> processes(SystemConfig(devices="2", nodes=2))
    4
    """
    if (started := _started_by_others()) is not None:
        return started[0] * started[1]
    if system.devices != "auto":
        return _count(system.devices) * system.nodes
    return max(1, torch.cuda.device_count() if system.accelerator in ("auto", "cuda") else 1) * system.nodes


def _started_by_others() -> tuple[int, int] | None:
    """Nodes, and processes on each, where torchrun or srun has started several; None where this is the only one."""
    found = os.environ.get
    if "TORCHELASTIC_RUN_ID" in os.environ:
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        return int(os.environ["WORLD_SIZE"]) // here, here
    tasks, nodes = int(found("SLURM_STEP_NUM_TASKS", "1")), int(found("SLURM_STEP_NUM_NODES", "1"))
    if tasks == 1:
        return None
    if tasks % nodes or "SLURM_NTASKS_PER_NODE" not in os.environ:
        raise ValueError(
            f"srun has started {tasks} tasks on {nodes} nodes; a run needs as many on each: give --ntasks-per-node "
            "instead of --ntasks"
        )
    return nodes, tasks // nodes


def _accelerated(accelerator: str) -> bool:
    """Whether runs train on something else than a CPU."""
    return accelerator != "cpu" and (torch.cuda.is_available() or torch.backends.mps.is_available())


def _count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise ValueError(f"system.devices must be a positive number or 'auto', got {text!r}")
    return count
