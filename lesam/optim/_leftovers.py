"""Gradients that were in ``.grad`` before a pass: somebody else's, or those of the last step."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
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

    def was_added_to(self) -> bool:
        """Whether the pass did not clear what was there, and it was not zero (asked only then: it waits for it)."""
        if self.probe is None:
            return False
        sharded = hasattr(self.probe, "device_mesh")  # whose gradients arrive at no hook, and leave the version alone
        kept = self._in_place() if sharded else self._kept
        return kept and (self.norm is None or float(self.norm) != 0.0)

    def close(self) -> None:
        """Stop watching."""
        if self._hook is not None:
            self._hook.remove()


class UsedUp:
    """Remembers which gradient the last step used up, to tell it from a new one."""

    def __init__(self, memory: Memory, parameters: Iterable[Tensor]) -> None:
        self.parameter = next((p for p in parameters if p.grad is not None), None)
        grad = None if self.parameter is None else self.parameter.grad
        self._grad = None if grad is None else weakref.ref(grad)
        self._version = 0 if grad is None else grad._version
        self._arrived = self._added_to = False
        self._hook: Any = None
        if self.parameter is not None and dist.is_initialized():
            # Reducers write gradients too, so there only the arrival of the next one tells what it is added to.
            self._hook = before_accumulation(memory, self.parameter, _weakly(self._arriving))

    def _arriving(self, _: tuple[Tensor, ...]) -> None:
        grad = None if self.parameter is None else self.parameter.grad
        if not self._arrived and grad is not None:
            # The parts of a bucket share one version, and move with it: only a look at the values tells.
            self._added_to = self.unchanged() if owns_memory(grad) else bool((grad != 0).any())
        self._arrived = True

    def _there(self) -> Tensor | None:
        grad = None if self.parameter is None else self.parameter.grad
        return grad if grad is not None and self._grad is not None and grad is self._grad() else None

    def unchanged(self) -> bool:
        """Whether ``.grad`` is the used-up tensor, as the step left it."""
        grad = self._there()
        return grad is not None and grad._version == self._version

    def added_to(self) -> bool:
        """Whether ``.grad`` is the used-up tensor, untouched or with one backward added to it."""
        grad = self._there()
        return self._added_to or (grad is not None and grad._version - self._version <= 1)

    def forget(self) -> None:
        """Stop watching; nothing is there any more."""
        self.parameter = None
        if self._hook is not None:
            self._hook.remove()

    def __del__(self) -> None:
        self.forget()


def _weakly(method: Any) -> Any:
    """A hook that does not keep its object alive."""
    reference = weakref.WeakMethod(method)

    def hook(grads: tuple[Tensor, ...]) -> None:
        alive = reference()
        if alive is not None:
            alive(grads)

    return hook
