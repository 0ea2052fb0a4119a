"""The wrapper's checkpoints, in torch's standard layout.

``state`` maps parameter numbers to the base optimizer's entries plus ours, whose keys start with ``lesam_``;
``param_groups`` are the base optimizer's, with the step count as ``lesam_step``. So whatever can save a torch optimizer
(Lightning, Accelerate, ``torch.distributed.checkpoint``) can save this one, and no key of ours can be taken for one of
the base optimizer's (RMSprop's ``alpha``, Adadelta's ``rho``, Adam's ``eps``).

Several bases are numbered through: groups and parameters in order. What a base keeps beside the standard entries
(MADGRAD's step count under the key ``"k"``, Lookahead's inner optimizer) passes through untouched: in its place for a
single base with the standard layout, else under ``lesam_bases``, one entry a base.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from ._bases import PREFIX, Bases
from ._memory import KNOWN, Memory

if TYPE_CHECKING:
    from ._loop import Loop

BASES = PREFIX + "bases"
StateDict = dict[str, Any]


def save(bases: Bases, memory: Memory) -> StateDict:
    """The base optimizers' state dicts as one, with the remembered buffers added."""
    saved = [base.state_dict() for base in bases.all]
    if bases.single and _standard(saved[0], bases.all[0]):
        whole = {**saved[0], "state": dict(saved[0]["state"])}
    else:
        whole = _joined(bases, saved)
    for number, parameter in _numbered(whole, bases):
        own = _prefixed(memory.saved(parameter))
        if own:
            whole["state"][number] = {**whole["state"].get(number, {}), **own}
    return whole


def load(saved: StateDict, bases: Bases, memory: Memory, remembers: Collection[str], notes: Collection[str]) -> None:
    """Load a state dict made by :func:`save`, or one of the bare base optimizer (then the method starts afresh).

    What another method has saved, and this one neither remembers nor notes in the groups, is left out: it would grow
    old in every later one.
    """
    if len(saved["param_groups"]) != len(bases.param_groups):
        raise ValueError(
            f"the state dict has {len(saved['param_groups'])} parameter groups, and the optimizer "
            f"{len(bases.param_groups)}: build it from the same groups, and several bases in the same order"
        )
    ours: dict[Any, dict[str, Any]] = {}
    theirs: dict[Any, Any] = {}
    for number, entries in saved["state"].items():
        if not isinstance(entries, Mapping):
            theirs[number] = entries
            continue
        ours[number] = _own(entries)
        if len(ours[number]) < len(entries) or not entries:
            theirs[number] = _foreign(entries) if ours[number] else entries
    whole = {key: value for key, value in saved.items() if key != BASES} | {"state": theirs}
    if bases.single and BASES not in saved:
        bases.all[0].load_state_dict(whole)
    else:
        _part(whole, saved.get(BASES), bases)
    bases.set_steps(bases.steps)
    bases.keep_only(notes)
    memory.forget()
    for number, parameter in _numbered(saved, bases):
        entries = ours.get(number, {})
        memory.load(parameter, {name: entries[name] for name in entries if name.removesuffix(KNOWN) in remembers})


def _standard(saved: StateDict, base: Optimizer) -> bool:
    """Whether a state dict has torch's layout, as far as we rely on it."""
    groups = saved.get("param_groups")
    if not isinstance(saved.get("state"), Mapping) or not isinstance(groups, list):
        return False
    sizes = [len(group["params"]) for group in base.param_groups]
    return [len(group.get("params", ())) for group in groups] == sizes


def _joined(bases: Bases, saved: list[StateDict]) -> StateDict:
    """Several state dicts as one: parameters numbered through, foreign entries kept for each base."""
    state: dict[Any, Any] = {}
    groups: list[dict[str, Any]] = []
    foreign: list[StateDict] = []
    start = 0
    for base, one in zip(bases.all, saved, strict=True):
        count = sum(len(group["params"]) for group in base.param_groups)
        if _standard(one, base):
            numbers = {n: start + i for i, n in enumerate(n for group in one["param_groups"] for n in group["params"])}
            state.update({numbers[n]: entries for n, entries in one["state"].items() if n in numbers})
            groups += [{**group, "params": [numbers[n] for n in group["params"]]} for group in one["param_groups"]]
            rest = {key: value for key, value in one.items() if key not in ("state", "param_groups")}
            foreign.append(rest | {"state": {n: entries for n, entries in one["state"].items() if n not in numbers}})
        else:
            first = start
            for group in base.param_groups:
                rest = {key: value for key, value in group.items() if key != "params"}
                groups.append({**rest, "params": list(range(first, first + len(group["params"])))})
                first += len(group["params"])
            foreign.append({"whole": one})
        start += count
    whole: StateDict = {"state": state, "param_groups": groups}
    return whole | ({BASES: foreign} if any(entry != {"state": {}} for entry in foreign) else {})


def _part(whole: StateDict, foreign: list[StateDict] | None, bases: Bases) -> None:
    """Give each base its part of what :func:`_joined` made."""
    groups = iter(whole["param_groups"])
    for index, base in enumerate(bases.all):
        kept = {"state": {}} if foreign is None else foreign[index]
        mine = [next(groups) for _ in base.param_groups]
        if "whole" in kept:
            base.load_state_dict(kept["whole"])
            continue
        numbers = {number: i for i, number in enumerate(n for group in mine for n in group["params"])}
        state = {numbers[n]: entries for n, entries in whole["state"].items() if n in numbers}
        renumbered = [{**group, "params": [numbers[n] for n in group["params"]]} for group in mine]
        base.load_state_dict({**kept, "state": state | kept["state"], "param_groups": renumbered})


class State(MutableMapping[Any, Any]):
    """``opt.state`` where it is more than one base's own: all bases' entries and ours, read and written.

    ``torch.distributed.checkpoint`` takes the names to load from here.
    """

    def __init__(self, bases: Bases, memory: Memory) -> None:
        self.bases, self.memory = bases, memory

    def base_of(self, key: Any) -> Optimizer:
        """The base that trains the parameter ``key``."""
        if self.bases.single or not isinstance(key, Tensor):
            return self.bases.all[0]
        owners = (b for b in self.bases.all if any(p is key for group in b.param_groups for p in group["params"]))
        return next(owners, self.bases.all[0])

    def __getitem__(self, parameter: Any) -> Any:
        own = _prefixed(self.memory.saved(parameter)) if isinstance(parameter, Tensor) else {}
        theirs = self.base_of(parameter).state[parameter]
        return Entries(self, parameter, {**theirs, **own}) if own else theirs

    def __setitem__(self, parameter: Any, entries: Any) -> None:
        self.base_of(parameter).state[parameter] = _foreign(entries) if isinstance(entries, Mapping) else entries
        if isinstance(entries, Mapping):
            self.memory.load(parameter, _own(entries))

    def __delitem__(self, parameter: Any) -> None:
        self.base_of(parameter).state.pop(parameter, None)
        self.memory.drop(parameter)

    def __iter__(self) -> Iterator[Any]:
        theirs = (parameter for base in self.bases.all for parameter in base.state)
        kept = (parameter for buffers in self.memory.kept.values() for parameter in buffers)
        return iter(dict.fromkeys([*theirs, *kept]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Entries(dict[str, Any]):
    """One parameter's entries; what is written here is written to where it belongs."""

    def __init__(self, state: State, parameter: Tensor, entries: dict[str, Any]) -> None:
        super().__init__(entries)
        self.state, self.parameter = state, parameter

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.state.base_of(self.parameter).state[self.parameter].update(_foreign({key: value}))
        self.state.memory.load(self.parameter, _own({key: value}))


def _prefixed(entries: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {PREFIX + name: value for name, value in entries.items()}


def _own(entries: Mapping[Any, Any]) -> dict[str, Any]:
    """Our entries, without their prefix."""
    return {key.removeprefix(PREFIX): value for key, value in entries.items() if str(key).startswith(PREFIX)}


def _foreign(entries: Mapping[Any, Any]) -> dict[Any, Any]:
    """The base optimizer's entries."""
    return {key: value for key, value in entries.items() if not str(key).startswith(PREFIX)}


def _numbered(saved: StateDict, bases: Bases) -> list[tuple[Any, Tensor]]:
    """Parameters with the numbers (or names) a state dict knows them by."""
    return [
        (number, parameter)
        for saved_group, group in zip(saved["param_groups"], bases.param_groups, strict=True)
        for number, parameter in zip(saved_group["params"], group["params"], strict=True)
    ]


def hooked(optimizer: Optimizer, hooks: Mapping[int, Callable[..., Any]], state: dict[str, Any]) -> dict[str, Any]:
    """A state as the user's hooks leave it: each may change it in place, or return another."""
    for hook in hooks.values():
        changed = hook(optimizer, state)
        state = state if changed is None else changed
    return state


def allocate(loop: Loop) -> None:
    """A step without passes: at learning rate 0 it allocates state, else it is an error.

    ``torch.distributed.checkpoint`` prepares to load in this way.
    """
    if not all(float(group.get("lr", 1.0)) == 0.0 for group in loop.bases.param_groups):
        raise RuntimeError(
            "step() has no gradient to step with: give it a closure, or run the passes first (`with opt.clean(): "
            "...`, `with opt.perturbed(): ...`)"
        )
    for name in loop.parts.direction.remembers:
        loop.memory.allocate(name, loop.perturbable())
    for name in loop.parts.combine.remembers:
        loop.memory.allocate(name, loop.trainable())
    loop.bases.step()
