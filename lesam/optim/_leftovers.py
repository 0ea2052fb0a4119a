"""Gradients that were in ``.grad`` before a pass: somebody else's, or those of the last step."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._gradient_sum import before_accumulation, clear, version
from ._memory import Memory


class Leftover:
    """Gradients that somebody left in ``.grad`` before a pass: harmless if the pass clears them, else a mistake.

    They are taken away, so that the pass gives its own gradient in either case. In their place one tensor of zeros
    tells whether the pass clears it before its backward.
    """

    def __init__(self, memory: Memory, parameters: list[Tensor]) -> None:
        present = [p for p in parameters if p.grad is not None]
        self.probe = min(present, key=torch.numel, default=None)
        self._hooks: list[Any] = []
        if self.probe is None:
            return
        space = memory.space("left over", present)
        self.norm = space.norm(space.gradients()) if all(p.grad.layout is torch.strided for p in present) else None  # type: ignore[union-attr]
        clear(present)
        self.zeros = self.probe.grad = torch.zeros_like(self.probe, requires_grad=False)
        self.version, self._kept, self._backwards = version(self.zeros), False, 0
        self._hooks = [
            before_accumulation(memory, self.probe, self._arriving),
            self.probe.register_post_accumulate_grad_hook(self._arrived),  # type: ignore[no-untyped-call]
        ]

    def _untouched(self) -> bool:
        return self.probe is not None and self.probe.grad is self.zeros and version(self.zeros) == self.version

    def _arriving(self, _: tuple[Tensor, ...]) -> None:
        self._kept |= self._backwards == 0 and self._untouched()

    def _arrived(self, _: Tensor) -> None:
        self._backwards += 1

    def was_added_to(self) -> bool:
        """Whether the pass did not clear what was there, and it was not zero (asked only then: it waits for it)."""
        if self.probe is None:
            return False
        sharded = hasattr(self.zeros, "device_mesh") and self.probe.grad is self.zeros
        # FSDP2's gradients arrive at no hook; each backward writes once.
        kept = self._kept or (sharded and version(self.zeros) - self.version <= self._backwards)
        return kept and (self.norm is None or float(self.norm) != 0.0)

    def close(self) -> None:
        """Stop watching."""
        while self._hooks:
            self._hooks.pop().remove()


class UsedUp:
    """Remembers which gradient the last step used up, to tell it from a new one."""

    def __init__(self, memory: Memory, parameters: Iterable[Tensor]) -> None:
        self.parameter = next((p for p in parameters if p.grad is not None), None)
        grad = None if self.parameter is None else self.parameter.grad
        self._grad = None if grad is None else weakref.ref(grad)
        self._version = 0 if grad is None else version(grad)
        self._added_to = False
        self._hook: Any = None
        if self.parameter is not None and dist.is_initialized():
            # Reducers write gradients too, so there only the arrival of the next one tells what it is added to.
            self._hook = before_accumulation(memory, self.parameter, _weakly(self._arriving))

    def _arriving(self, _: tuple[Tensor, ...]) -> None:
        self._added_to |= self.unchanged()

    def _there(self) -> Tensor | None:
        grad = None if self.parameter is None else self.parameter.grad
        return grad if grad is not None and self._grad is not None and grad is self._grad() else None

    def unchanged(self) -> bool:
        """Whether ``.grad`` is the used-up tensor, as the step left it."""
        grad = self._there()
        return grad is not None and version(grad) == self._version

    def added_to(self) -> bool:
        """Whether ``.grad`` is the used-up tensor, untouched or with one backward added to it."""
        grad = self._there()
        return self._added_to or (grad is not None and version(grad) - self._version <= 1)

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
