"""What a method remembers from step to step, and the buffers it works in.

A step is a transaction: parts write their new values into *drafts*, and only a step that is taken commits them.
Until then the kept values are untouched, so an exception, a skipped step or a dropped pass leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from ._arithmetic import Scratch, Space, Vector, copy_all_
from ._kinds import local, sharded_like

KNOWN = "_known"


class Memory:
    """Named buffers, one tensor for each parameter: kept between steps, saved with the optimizer.

    Work buffers cover the parameters that can be perturbed, or all that can have a gradient, and are reused.
    """

    def __init__(self) -> None:
        self.kept: dict[str, dict[Tensor, Tensor]] = {}
        self._known: dict[str, set[Tensor]] = {}  # parameters whose kept buffer was written by a step
        self._drafts: dict[str, dict[Tensor, Tensor]] = {}
        self._scratch: dict[str, Scratch] = {}
        self._spaces: dict[str, Space] = {}
        self._accumulators: dict[Tensor, Node] = {}
        self._shapes: list[tuple[object, ...]] = []  # of the trainable parameters, as the work buffers know them

    # ------------------------------------------------------------------ spaces and work buffers

    def prepare(self, trainable: Sequence[Tensor], perturbable: Sequence[Tensor]) -> None:
        """Set the parameters that work buffers cover; the buffers are dropped when these change."""
        shapes: list[tuple[object, ...]] = [(p.dtype, p.device, p.shape) for p in trainable]
        if shapes != self._shapes:  # model.float(), model.to(device) change parameters in place
            self._shapes = shapes
            self._spaces.clear()
            self._scratch.clear()
            self._accumulators.clear()
            self._follow(trainable)
        before = self._spaces.get("trainable"), self._spaces.get("perturbable")
        if before != (self.space("trainable", trainable), self.space("perturbable", perturbable)):
            self._scratch.clear()

    @torch.no_grad()
    def _follow(self, parameters: Sequence[Tensor]) -> None:
        """Bring remembered values to the dtype and device of their parameters."""
        for kept in self.kept.values():
            for parameter in parameters:
                if parameter in kept:
                    kept[parameter] = kept[parameter].to(parameter.device, parameter.dtype)

    def space(self, role: str, parameters: Sequence[Tensor]) -> Space:
        """The space of ``parameters``: the one last used in this role, if it is the same."""
        known = self._spaces.get(role)
        if known is None or not _same(known.parameters, parameters):
            known = next((s for s in self._spaces.values() if _same(s.parameters, parameters)), None)
            known = self._spaces[role] = known or Space(parameters)
        return known

    def scratch(self, name: str, covering: str = "perturbable") -> Scratch:
        """The work buffer ``name``, allocated on first use and kept; its content means nothing between uses."""
        if name not in self._scratch:
            self._scratch[name] = Scratch(self._spaces[covering])
        return self._scratch[name]

    def accumulator(self, parameter: Tensor) -> Node:
        """The node of the autograd graph that adds a gradient to ``parameter.grad``."""
        if parameter not in self._accumulators:
            self._accumulators[parameter] = get_gradient_edge(parameter).node
        return self._accumulators[parameter]

    def holds(self, name: str, x: Vector) -> bool:
        """Whether ``x`` lies in the work buffer ``name``."""
        flat = self._scratch[name].flat.values() if name in self._scratch else ()
        storages = {tensor.untyped_storage().data_ptr() for tensor in flat}
        return all(tensor.untyped_storage().data_ptr() in storages for tensors in x for tensor in tensors)

    def product(self) -> Scratch:
        """A work buffer that covers all trainable parameters, for inner products while the backup is not in use."""
        same = self._spaces["trainable"] is self._spaces["perturbable"]
        return self.scratch("backup") if same else self.scratch("product", covering="trainable")

    # ------------------------------------------------------------------ remembered values

    def knows(self, name: str, parameter: Tensor) -> bool:
        """Whether a step (taken, or under way) has written the value of ``name`` for ``parameter``."""
        return parameter in self._known.get(name, ()) or self.drafted(name, parameter)

    def drafted(self, name: str, parameter: Tensor) -> bool:
        """Whether the step under way has written the value of ``name`` for ``parameter``."""
        return parameter in self._drafts.get(name, ())

    def recall(self, name: str, space: Space) -> Vector:
        """The value of ``name``; zero for a parameter that has none yet."""
        self.allocate(name, space.parameters)
        kept, drafts = self.kept[name], self._drafts.get(name, {})
        return space.vector([drafts.get(p, kept[p]) for p in space.parameters])

    def draft(self, name: str, space: Space, covering: str = "perturbable") -> Vector:
        """A writable copy of ``name`` that replaces it when the step is taken."""
        now = self.recall(name, space)
        buffer = self.scratch(f"next {name}", covering)
        draft = buffer.vector(space)
        started = self._drafts.setdefault(name, {})
        if not all(parameter in started for parameter in space.parameters):
            space.copy_(draft, now)
        started.update({parameter: buffer.views[parameter] for parameter in space.parameters})
        return draft

    def allocate(self, name: str, parameters: Sequence[Tensor]) -> None:
        """Make room for ``name`` without giving it a value."""
        kept = self.kept.setdefault(name, {})
        for parameter in parameters:
            if parameter not in kept:
                kept[parameter] = torch.zeros_like(parameter, requires_grad=False)

    @torch.no_grad()
    def commit(self) -> None:
        """Take over all drafts: the step was taken."""
        for name, drafts in self._drafts.items():
            kept = self.kept[name]
            space = self.space(f"next {name}", list(drafts))
            space.copy_(space.vector([kept[p] for p in drafts]), space.vector(list(drafts.values())))
            self._known.setdefault(name, set()).update(drafts)
        self._drafts.clear()

    def discard(self) -> None:
        """Forget all drafts: the step was not taken."""
        self._drafts.clear()

    # ------------------------------------------------------------------ saving

    def saved(self, parameter: Tensor) -> dict[str, Tensor]:
        """What to save for ``parameter``: each buffer, and whether a step has written it."""
        entries: dict[str, Tensor] = {}
        for name, kept in self.kept.items():
            if parameter in kept:
                entries[name] = kept[parameter]
                entries[name + KNOWN] = torch.tensor(float(parameter in self._known.get(name, ())), device="cpu")
        return entries

    @torch.no_grad()
    def load(self, parameter: Tensor, entries: Mapping[str, Tensor]) -> None:
        """Put saved buffers back, on the parameter's device and in its dtype."""
        for name in (name for name in entries if not name.endswith(KNOWN)):
            self.allocate(name, [parameter])
            kept = self.kept[name][parameter]
            copy_all_([local(kept)], [local(sharded_like(entries[name], kept))])
            if bool(entries.get(name + KNOWN, 1.0)):
                self._known.setdefault(name, set()).add(parameter)

    def drop(self, parameter: Tensor) -> None:
        """Forget everything about one parameter."""
        for name, kept in self.kept.items():
            kept.pop(parameter, None)
            self._known.get(name, set()).discard(parameter)

    def forget(self) -> None:
        """Drop everything remembered, as before loading a checkpoint."""
        self.kept.clear()
        self._known.clear()
        self._drafts.clear()

    def __getstate__(self) -> dict[str, object]:
        """Work buffers hold copies of the weights and are never copied or pickled."""
        return {**self.__dict__, "_drafts": {}, "_scratch": {}, "_spaces": {}, "_accumulators": {}, "_shapes": []}


def _same(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
