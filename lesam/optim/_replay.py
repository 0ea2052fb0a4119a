"""Random numbers: the second pass over a mini-batch draws what the first one drew."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class RandomState:
    """The states of the random generators that a pass on ``devices`` can draw from.

    torch's global ones, Python's, NumPy's (where NumPy is loaded at all), and any further ``torch.Generator``.

    Example:
        >>> start = RandomState([torch.device("cpu")])
        >>> first = torch.rand(3), random.random()
        >>> with start.replayed():
        ...     second = torch.rand(3), random.random()
        >>> torch.equal(first[0], second[0]), first[1] == second[1]
        (True, True)
    """

    def __init__(self, devices: Iterable[torch.device], generators: Sequence[torch.Generator] = ()) -> None:
        self.cpu = torch.get_rng_state()
        self.accelerators: dict[torch.device, Tensor] = {}
        for device in dict.fromkeys(devices):
            module = _random_module(device)
            if module is not None:
                self.accelerators[device] = module.get_rng_state(device)
        self.generators = [(generator, generator.get_state()) for generator in generators]
        self.python = random.getstate()
        numpy = _numpy_random()
        self.numpy = None if numpy is None else numpy.get_state()

    def restore(self) -> None:
        """Set the generators to these states."""
        torch.set_rng_state(self.cpu)
        for device, state in self.accelerators.items():
            _random_module(device).set_rng_state(state, device)
        for generator, state in self.generators:
            generator.set_state(state)
        random.setstate(self.python)
        numpy = _numpy_random()
        if numpy is not None and self.numpy is not None:
            numpy.set_state(self.numpy)

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Draw the same numbers again inside, and continue afterwards as if nothing had been drawn."""
        after = RandomState(self.accelerators, [generator for generator, _ in self.generators])
        self.restore()
        try:
            yield
        finally:
            after.restore()


def _random_module(device: torch.device) -> Any:
    return None if device.type in ("cpu", "meta") else getattr(torch, device.type, None)


def _numpy_random() -> Any:
    """NumPy's global generator, if this process uses NumPy: ``import lesam`` must not load it."""
    return getattr(sys.modules.get("numpy"), "random", None)


def generators_of(replay_rng: object) -> tuple[torch.Generator, ...] | None:
    """The generators named by the option ``replay_rng`` beyond the global ones; None where nothing is replayed."""
    if isinstance(replay_rng, bool):
        return () if replay_rng else None
    if isinstance(replay_rng, list | tuple) and all(isinstance(one, torch.Generator) for one in replay_rng):
        return tuple(replay_rng)
    raise ValueError(f"replay_rng must be True, False or a list of torch.Generator, got {replay_rng!r}")
