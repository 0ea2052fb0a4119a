"""Counters of operations and of memory."""

from __future__ import annotations

import gc
import os
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

HOST_READS = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero"}


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts dispatched operations, and among them those that hand a device value to the host.

    Example:
        >>> with Operations() as counted:
        ...     _ = (torch.ones(2) + 1).sum().item()
        >>> counted.host_reads
        1
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count ``func`` and call it."""
        self.names[func._schema.name] += 1
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        """The number of operations."""
        return sum(self.names.values())

    @property
    def host_reads(self) -> int:
        """The number of those for which the host waits."""
        return sum(number for name, number in self.names.items() if name in HOST_READS)


class Bytes:
    """Follows the bytes that torch's CPU allocator hands out inside: how many more at the worst moment, and at the end.

    Example:
        >>> with Bytes() as followed:
        ...     _ = torch.ones(1000).sum()
        >>> 4000 <= followed.peak < 5000
        True
    """

    peak = left = 0

    def __enter__(self) -> Bytes:
        gc.collect()  # what is left of earlier work would be freed inside
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler reports on stderr that it looked for a GPU
        self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
        self._profile.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        self._profile.__exit__(*error)  # type: ignore[no-untyped-call]
        results: Any = self._profile.profiler.kineto_results  # type: ignore[union-attr]
        moves = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
        for _, size in moves:
            self.left += size
            self.peak = max(self.peak, self.left)


class DeviceBytes:
    """The same for the memory of an accelerator, by torch's own statistics."""

    peak = 0

    def __init__(self, device: torch.device) -> None:
        self.statistics: Any = getattr(torch, device.type)

    def __enter__(self) -> DeviceBytes:
        gc.collect()
        self.statistics.synchronize()
        self.statistics.reset_peak_memory_stats()
        self.before = self.statistics.memory_allocated()
        return self

    def __exit__(self, *error: object) -> None:
        self.statistics.synchronize()
        self.peak = self.statistics.max_memory_allocated() - self.before
