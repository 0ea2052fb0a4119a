"""The wrapper's checkpoints, in torch's standard layout.

``state`` maps parameter numbers to the base optimizer's entries plus ours, whose keys start with ``lesam_``;
``param_groups`` are the base optimizer's, with the step count as ``lesam_step``. So whatever can save a torch optimizer
(Lightning, Accelerate, ``torch.distributed.checkpoint``) can save this one, and no key of ours can be taken for one of
the base optimizer's (RMSprop's ``alpha``, Adadelta's ``rho``, Adam's ``eps``).
"""

from __future__ import annotations

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
        own = {PREFIX + name: kept[parameter] for name, kept in memory.kept.items() if parameter in kept}
        if own:
            state[number] = {**state.get(number, {}), **own}
    return {**saved, "state": state}


def load(saved: dict[str, Any], base: torch.optim.Optimizer, memory: Memory) -> None:
    """Load a state dict made by :func:`save`, or one of the bare base optimizer (then the method starts afresh)."""
    theirs: dict[Any, dict[str, Any]] = {}
    ours: dict[Any, dict[str, Tensor]] = {}
    for number, entries in saved["state"].items():
        theirs[number] = {key: value for key, value in entries.items() if not str(key).startswith(PREFIX)}
        ours[number] = {key: value for key, value in entries.items() if str(key).startswith(PREFIX)}
    base.load_state_dict({**saved, "state": {number: entries for number, entries in theirs.items() if entries}})
    set_step_count(base, step_count(base))
    memory.forget()
    taken = step_count(base) > 0  # before the first step there is room for values, but no value
    for number, parameter in _numbered(saved, base):
        for key, value in ours.get(number, {}).items():
            memory.load(key.removeprefix(PREFIX), parameter, value, known=taken)


def _numbered(saved: dict[str, Any], base: torch.optim.Optimizer) -> list[tuple[Any, Tensor]]:
    """Parameters with the numbers (or names) a state dict knows them by."""
    return [
        (number, parameter)
        for saved_group, group in zip(saved["param_groups"], base.param_groups, strict=True)
        for number, parameter in zip(saved_group["params"], group["params"], strict=True)
    ]
