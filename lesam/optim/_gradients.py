"""The ``.grad`` fields: whether a pass cleared them, and how to make a pass add to them.

Users clear gradients in many ways: ``opt.zero_grad()``, ``model.zero_grad()``, ``p.grad = None``, ``zero_()``. A
backward either creates ``p.grad`` or adds to it in place, which moves the tensor's version by one. So identity and
version of ``p.grad`` tell, without looking at a value, what happened to it.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._arithmetic import local


def version(grad: Tensor) -> int:
    """How often ``grad`` was written to in place; FSDP2 writes to the local part of a DTensor."""
    return local(grad)._version


class Accumulations:
    """Counts how often a backward has added to the gradient of each parameter."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.counts: Counter[Tensor] = Counter()
        self._hooks: list[Any] = []
        # Distributed wrappers write gradients themselves, so there versions do not count backwards only.
        if not dist.is_initialized():
            self._hooks = [p.register_post_accumulate_grad_hook(self._add) for p in parameters]  # type: ignore[no-untyped-call]

    def _add(self, parameter: Tensor) -> None:
        self.counts[parameter] += 1

    def close(self) -> None:
        """Stop counting."""
        while self._hooks:
            self._hooks.pop().remove()


class Carry:
    """Gradients that a pass must add to, however the code of that pass clears them.

    With ``opt.zero_grad()`` (which then does nothing) the backward adds to the held tensors in place, at no cost in
    memory. Clearing by ``p.grad = None`` is mended by :meth:`merge`, since the held tensors stay alive here. Zeroing
    the held tensors in place loses them; that is noticed, and is an error.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.held = {p: p.grad for p in parameters if p.grad is not None}
        self.versions = {p: version(grad) for p, grad in self.held.items()}
        self.accumulations = Accumulations(self.held)
        self._value_hook: Any = None
        self._overwritten = False
        self._copied: set[Tensor] = set()
        self._copy_hooks: list[Any] = []
        if dist.is_initialized():
            self._copy_hooks = [p.register_hook(partial(self._arrive, p)) for p in self.held]  # type: ignore[no-untyped-call]

    def _arrive(self, parameter: Tensor, _: Tensor) -> None:
        """Called before a backward adds to ``.grad``: DistributedDataParallel may have moved it into a bucket."""
        if parameter.grad is not None and parameter.grad is not self.held[parameter]:
            self._copied.add(parameter)

    def watch_values(self) -> None:
        """Look at a value once, when the backward first arrives: ``p.grad.data.zero_()`` moves no version."""
        if dist.is_initialized() or not self.held:
            return
        probe = min(self.held, key=lambda p: self.held[p].numel())
        before = self.held[probe].nan_to_num(1.0)

        def look(_: Tensor) -> None:
            now = self.held[probe].nan_to_num(1.0)
            self._overwritten |= probe.grad is self.held[probe] and not torch.equal(now, before)
            self._value_hook.remove()

        self._value_hook = probe.register_hook(look)  # type: ignore[no-untyped-call]

    def touched(self) -> bool:
        """Whether a held tensor has been added to, or replaced."""
        return any(p.grad is not grad or version(grad) != self.versions[p] for p, grad in self.held.items())

    def close(self) -> None:
        """Stop watching."""
        self.accumulations.close()
        for hook in (self._value_hook, *self._copy_hooks):
            if hook is not None:
                hook.remove()

    def merge(self) -> None:
        """Leave the sum of what was held and what the pass computed in ``.grad``, in the held tensors."""
        self.close()
        if self._changed_in_place():
            raise RuntimeError(
                "the gradients were changed in place (zeroed, or clipped) in a pass that adds to them. Clear them with "
                "opt.zero_grad(), which knows about this, or zero_grad(set_to_none=True); clip with max_norm="
            )
        for parameter, grad in self.held.items():
            new = parameter.grad
            if new is not None and new is not grad:
                if version(grad) != self.versions[parameter] or parameter in self._copied:
                    continue  # replaced after the backward had added to it, or by a copy: it holds the sum already
                grad.add_(new)
            parameter.grad = grad

    def _changed_in_place(self) -> bool:
        counts = self.accumulations.counts
        return self._overwritten or any(
            p.grad is grad and 0 < counts[p] < version(grad) - self.versions[p] for p, grad in self.held.items()
        )


class EntryCheck:
    """Finds gradients that were there before the first pass and that it did not clear."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.probe = next((p for p in parameters if p.grad is not None), None)
        if self.probe is not None and self.probe.grad is not None:
            self.grad = self.probe.grad
            self.version = version(self.grad)
            self.accumulations = Accumulations([self.probe])

    def close(self) -> None:
        """Stop watching."""
        if self.probe is not None:
            self.accumulations.close()

    def left_over(self) -> bool:
        """Whether the pass added to (or left alone) what was there."""
        if self.probe is None or self.probe.grad is not self.grad or dist.is_initialized():
            return False
        return version(self.grad) - self.version <= self.accumulations.counts[self.probe]


class Consumed:
    """Remembers which gradient the last step used up, to tell it from a new one."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameter = next((p for p in parameters if p.grad is not None), None)
        grad = None if self.parameter is None else self.parameter.grad
        self.grad = None if grad is None else weakref.ref(grad)
        self.version = 0 if grad is None else version(grad)

    def still_there(self) -> bool:
        """Whether ``.grad`` is the used-up tensor, untouched or with one backward added to it."""
        if self.parameter is None or self.grad is None:
            return False
        grad = self.parameter.grad
        return grad is not None and grad is self.grad() and version(grad) - self.version <= 1


def clear(parameters: Iterable[Tensor]) -> None:
    """Drop the gradients."""
    for parameter in parameters:
        parameter.grad = None
