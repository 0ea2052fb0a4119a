"""Gradients that were in ``.grad`` before a pass: somebody else's, or those of the last step."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ._gradient_sum import before_accumulation, clear, own_norm, owns_memory
from ._memory import Memory


class Leftover:
    """Gradients that somebody left in ``.grad`` before a pass: harmless if the pass clears them, else a mistake.

    They are taken away, so that the pass gives its own gradient in either case. In their place one tensor of zeros
    tells whether the pass clears it before its backward.
    """

    def __init__(self, memory: Memory, parameters: list[Tensor]) -> None:
        present = [p for p in parameters if p.grad is not None]
        self.probe = min(present, key=torch.numel, default=None)
        self._hook: Any = None
        if self.probe is None:
            return
        self.norm = own_norm([p.grad for p in present if p.grad is not None])
        clear(present)
        self.zeros = self.probe.grad = torch.zeros_like(self.probe, requires_grad=False)
        self.version, self._kept, self._arrived = self.zeros._version, False, False
        self._hook = before_accumulation(memory, self.probe, self._arriving)

    def _arriving(self, _: tuple[Tensor, ...]) -> None:
        if not self._arrived:
            self._kept, self._arrived = self._in_place(), True

    def _in_place(self) -> bool:
        grad = None if self.probe is None else self.probe.grad
        # DistributedDataParallel may have moved the zeros into a bucket of its own.
        moved = grad is not None and grad is not self.zeros and not owns_memory(grad)
        return (grad is self.zeros or moved) and self.zeros._version == self.version

    def settle(self) -> None:
        """Take the zeros away again, if nothing was added to them."""
        if self.probe is not None and not self._arrived and not _sharded(self.probe) and self._in_place():
            self._kept, self.probe.grad = True, None

    def was_added_to(self) -> bool:
        """Whether the pass did not clear what was there, and it was not zero (asked only then: it waits for it)."""
        if self.probe is None:
            return False
        kept = self._in_place() if _sharded(self.probe) else self._kept
        return kept and (self.norm is None or float(self.norm) != 0.0)

    def close(self) -> None:
        """Stop watching."""
        if self._hook is not None:
            self._hook.remove()


def _sharded(parameter: Tensor) -> bool:
    """Whether gradients arrive at no hook, and leave the version alone (FSDP2)."""
    return hasattr(parameter, "device_mesh")


class UsedUp:
    """Knows the gradients that the last step used up from new ones.

    Each bears a mark with its version: one that is written to, or another tensor, is not the used-up one any more.
    """

    MARK = "_lesam_used_up"

    def __init__(self, memory: Memory, parameters: Iterable[Tensor], zeros: bool = False) -> None:
        self.zeros = zeros  # cleared in place: nothing to be added to by mistake
        self._arrived = self._added_to = False
        self._hook: Any = None
        probe = None
        for parameter in parameters:
            if parameter.grad is not None:
                setattr(parameter.grad, self.MARK, parameter.grad._version)
                probe = parameter if probe is None else probe
        if probe is not None and not zeros:
            # Only the arrival of the next gradient tells what it is added to.
            self._hook = before_accumulation(memory, probe, _weakly(self._arriving, probe))

    def _arriving(self, parameter: Tensor) -> None:
        grad = parameter.grad
        if not self._arrived and grad is not None:
            # The parts of a bucket share one version, and move with it: only a look at the values tells.
            self._added_to = self._age(parameter) == 0 if owns_memory(grad) else bool((grad != 0).any())
        self._arrived = True

    def _age(self, parameter: Tensor) -> int | None:
        """How often the used-up gradient of ``parameter`` was written to since; None if it is another one."""
        mark = getattr(parameter.grad, self.MARK, None)
        return None if mark is None or parameter.grad is None else parameter.grad._version - mark

    def unchanged(self, parameters: Iterable[Tensor]) -> bool:
        """Whether all that is in ``.grad`` is used up, as the step left it."""
        return all(self._age(p) == 0 for p in parameters if p.grad is not None)

    def added_to(self, parameters: Iterable[Tensor]) -> bool:
        """Whether a used-up gradient is still there, untouched or with a backward added to it."""
        if self.zeros:
            return False
        owned = [p for p in parameters if p.grad is not None and owns_memory(p.grad)]
        return self._added_to or any(self._age(p) in (0, 1) for p in owned)

    def forget(self) -> None:
        """Stop watching."""
        if self._hook is not None:
            self._hook.remove()

    def __del__(self) -> None:
        self.forget()


def _weakly(method: Any, parameter: Tensor) -> Any:
    """A hook that does not keep its object alive."""
    reference = weakref.WeakMethod(method)

    def hook(_: tuple[Tensor, ...]) -> None:
        alive = reference()
        if alive is not None:
            alive(parameter)

    return hook
