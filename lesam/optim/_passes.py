"""What surrounds a pass: random numbers, BatchNorm statistics, communication, frozen tensors.

Two passes over one mini-batch should differ in the weights alone. These pieces make the second pass replay the first
and leave no trace of itself in the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ._arithmetic import clone_all, copy_all_


class RandomState:
    """The states of the random generators that a pass on ``devices`` can draw from.

    Example:
        >>> start = RandomState([torch.device("cpu")])
        >>> first = torch.rand(3)
        >>> with start.replayed():
        ...     second = torch.rand(3)
        >>> torch.equal(first, second)
        True
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self.cpu = torch.get_rng_state()
        self.accelerators: dict[torch.device, Tensor] = {}
        for device in dict.fromkeys(devices):
            module = _random_module(device)
            if module is not None:
                self.accelerators[device] = module.get_rng_state(device)

    def restore(self) -> None:
        """Set the generators to these states."""
        torch.set_rng_state(self.cpu)
        for device, state in self.accelerators.items():
            _random_module(device).set_rng_state(state, device)

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Draw the same numbers again inside, and go on afterwards as if nothing had been drawn."""
        after = RandomState(self.accelerators)
        self.restore()
        try:
            yield
        finally:
            after.restore()


def _random_module(device: torch.device) -> Any:
    return None if device.type in ("cpu", "meta") else getattr(torch, device.type, None)


class BatchStatistics:
    """A copy of a model's running statistics, to put back after a pass that should not have moved them.

    Copies the buffers of every module that has a ``running_mean``, ``running_var`` or ``num_batches_tracked``, so any
    subclass or imitation of BatchNorm is covered, and neither mode nor momentum is touched.

    Example:
        >>> norm = nn.BatchNorm1d(2)
        >>> before = BatchStatistics(norm)
        >>> _ = norm(torch.randn(8, 2))
        >>> before.restore()
        >>> norm.num_batches_tracked
        tensor(0)
    """

    NAMES = ("running_mean", "running_var", "num_batches_tracked")

    def __init__(self, model: nn.Module) -> None:
        self.places = [
            (module, name, buffer)
            for module in normalizers(model)
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self.values = clone_all([buffer for _, _, buffer in self.places])

    def restore(self) -> None:
        """Put the copied values back, into the very tensors they came from."""
        with torch.no_grad():
            copy_all_([buffer for _, _, buffer in self.places], self.values)
        for module, name, buffer in self.places:
            if module._buffers[name] is not buffer:  # home-made modules assign a new tensor
                module._buffers[name] = buffer


def normalizers(model: nn.Module) -> list[nn.Module]:
    """The modules of ``model`` that keep running statistics."""
    names = BatchStatistics.NAMES
    return [m for m in model.modules() if any(m._buffers.get(name) is not None for name in names)]


@contextmanager
def evaluated(modules: Sequence[nn.Module]) -> Iterator[None]:
    """These modules in evaluation mode inside, each back in its own mode afterwards."""
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


def unsynchronised(model: nn.Module | None) -> AbstractContextManager[None]:
    """A pass whose gradients stay on their worker: DistributedDataParallel's ``no_sync``, else nothing."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return model.no_sync()
    return nullcontext()


def compiled(model: nn.Module | None) -> bool:
    """Whether torch.compile is at work in ``model``."""
    if model is None:
        return False
    # By name, since importing torch._dynamo to test for its class takes seconds.
    return any(m._compiled_call_impl is not None or type(m).__name__ == "OptimizedModule" for m in model.modules())


def workers(model: nn.Module | None) -> Any:
    """The process group over which a model's gradients are averaged; None if it has none."""
    return model.process_group if isinstance(model, nn.parallel.DistributedDataParallel) else None


@contextmanager
def without_gradient(parameters: Sequence[Tensor]) -> Iterator[None]:
    """A backward inside does not compute the gradients of ``parameters``; frozen ones stay frozen afterwards."""
    switched = [parameter for parameter in parameters if parameter.requires_grad]
    try:
        for parameter in switched:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in switched:
            parameter.requires_grad_(True)
