"""The wrapper's checkpoints, in torch's standard layout.

``state`` maps parameter numbers to the base optimizer's entries plus ours, whose keys start with ``lesam_``;
``param_groups`` are the base optimizer's, with the step count as ``lesam_step``. So whatever can save a torch optimizer
(Lightning, Accelerate, ``torch.distributed.checkpoint``) can save this one, and no key of ours can be taken for one of
the base optimizer's (RMSprop's ``alpha``, Adadelta's ``rho``, Adam's ``eps``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from ._memory import Memory

PREFIX = "lesam_"
STEP = PREFIX + "step"


def step_count(base: torch.optim.Optimizer) -> int:
    """Steps taken so far. It lives in the groups, so that the base optimizer saves and loads it."""
    return max((int(group.get(STEP, 0)) for group in base.param_groups), default=0)


def set_step_count(base: torch.optim.Optimizer, count: int) -> None:
    """Write the number of steps taken into every group."""
    for group in base.param_groups:
        group[STEP] = count


def save(base: torch.optim.Optimizer, memory: Memory) -> dict[str, Any]:
    """The base optimizer's state dict with the remembered buffers added."""
    saved = base.state_dict()
    state = dict(saved["state"])
    for number, parameter in _numbered(saved, base):
        own = _prefixed(memory.saved(parameter))
        if own:
            state[number] = {**state.get(number, {}), **own}
    return {**saved, "state": state}


def load(saved: dict[str, Any], base: torch.optim.Optimizer, memory: Memory) -> None:
    """Load a state dict made by :func:`save`, or one of the bare base optimizer (then the method starts afresh)."""
    theirs: dict[Any, dict[str, Any]] = {}
    ours: dict[Any, dict[str, Any]] = {}
    for number, entries in saved["state"].items():
        theirs[number], ours[number] = _split(entries)
    base.load_state_dict({**saved, "state": {number: entries for number, entries in theirs.items() if entries}})
    set_step_count(base, step_count(base))
    memory.forget()
    for number, parameter in _numbered(saved, base):
        memory.load(parameter, ours.get(number, {}))


class State(MutableMapping[Tensor, Any]):
    """``opt.state`` of a method that remembers something: the base optimizer's entries and ours, read and written.

    ``torch.distributed.checkpoint`` takes the names to load from here.
    """

    def __init__(self, base: torch.optim.Optimizer, memory: Memory) -> None:
        self.base, self.memory = base, memory

    def __getitem__(self, parameter: Tensor) -> Any:
        own = _prefixed(self.memory.saved(parameter))
        theirs = self.base.state[parameter]
        return Entries(self, parameter, {**theirs, **own}) if own else theirs

    def __setitem__(self, parameter: Tensor, entries: dict[str, Any]) -> None:
        theirs, own = _split(entries)
        self.base.state[parameter] = theirs
        self.memory.load(parameter, own)

    def __delitem__(self, parameter: Tensor) -> None:
        del self.base.state[parameter]

    def __iter__(self) -> Iterator[Tensor]:
        kept = (parameter for buffers in self.memory.kept.values() for parameter in buffers)
        return iter(dict.fromkeys([*self.base.state, *kept]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Entries(dict[str, Any]):
    """One parameter's entries; what is written here is written to where it belongs."""

    def __init__(self, state: State, parameter: Tensor, entries: dict[str, Any]) -> None:
        super().__init__(entries)
        self.state, self.parameter = state, parameter

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        theirs, own = _split({key: value})
        self.state.base.state[self.parameter].update(theirs)
        self.state.memory.load(self.parameter, own)


def _prefixed(entries: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {PREFIX + name: value for name, value in entries.items()}


def _split(entries: Mapping[Any, Any]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """The base optimizer's entries, and ours without their prefix."""
    ours = {key.removeprefix(PREFIX): value for key, value in entries.items() if str(key).startswith(PREFIX)}
    theirs = {key: value for key, value in entries.items() if not str(key).startswith(PREFIX)}
    return theirs, ours


def _numbered(saved: dict[str, Any], base: torch.optim.Optimizer) -> list[tuple[Any, Tensor]]:
    """Parameters with the numbers (or names) a state dict knows them by."""
    return [
        (number, parameter)
        for saved_group, group in zip(saved["param_groups"], base.param_groups, strict=True)
        for number, parameter in zip(saved_group["params"], group["params"], strict=True)
    ]
