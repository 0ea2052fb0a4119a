"""Sums of gradients, collected out of the user's reach.

Users clear gradients in many ways: ``opt.zero_grad()``, ``model.zero_grad()``, ``p.grad = None``, ``p.grad.zero_()``,
or not at all. So before every backward the ``.grad`` fields are empty, and what the backward is to be added to waits
here: whatever the code does to ``.grad`` before it, the sum is the right one. What is done to ``.grad`` *after* a
backward changes the gradient, and :class:`Watch` sees it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._arithmetic import local
from ._memory import Memory


def version(grad: Tensor) -> int:
    """How often ``grad`` was written to in place; FSDP2 writes to the local part of a DTensor."""
    return local(grad)._version


def clear(parameters: Iterable[Tensor]) -> None:
    """Drop the gradients."""
    for parameter in parameters:
        parameter.grad = None


def held(parameters: Iterable[Tensor]) -> dict[Tensor, Tensor]:
    """The gradients, out of the ``.grad`` fields and safe from the next backward.

    A gradient that is a part of a larger tensor belongs to somebody who may write to it again
    (DistributedDataParallel's ``gradient_as_bucket_view``), so that one is copied. FSDP2's are parts as well, of a
    tensor that is made anew in each backward.
    """
    taken: dict[Tensor, Tensor] = {}
    for parameter in parameters:
        grad = parameter.grad
        if grad is not None:
            own = hasattr(grad, "device_mesh") or grad.untyped_storage().nbytes() == grad.numel() * grad.element_size()
            taken[parameter] = grad if own else grad.clone(memory_format=torch.preserve_format)
            parameter.grad = None
    return taken


class GradientSum:
    """What the backwards of a pass are to be added to, and the addition.

    A hook adds the waiting tensor to a gradient at the moment it arrives, before autograd puts it into ``.grad``: one
    addition a tensor and no further memory, and a reduction over workers that follows is one of the sum. Gradients
    that come another way (FSDP2's, or assigned by hand) are added by :meth:`settle`.

    Example:
        >>> w = torch.ones(2, requires_grad=True)
        >>> w.grad = torch.tensor([1.0, 2.0])
        >>> total = GradientSum(Memory(), [w])
        >>> total.wait()
        >>> w.grad is None
        True
        >>> (3 * w).sum().backward()
        >>> total.settle()
        >>> w.grad
        tensor([4., 5.])
    """

    def __init__(self, memory: Memory, parameters: list[Tensor]) -> None:
        self.memory, self.parameters = memory, parameters
        self.waiting: dict[Tensor, Tensor] = {}
        self.folded: set[Tensor] = set()
        self._hooks: list[Any] = []

    def wait(self) -> None:
        """Empty the ``.grad`` fields: what is in them waits to be added to."""
        self.waiting = held(self.parameters)
        self.folded.clear()
        self._hooks += [p.register_hook(partial(self._fold, p)) for p in self.waiting]  # type: ignore[no-untyped-call]

    def _fold(self, parameter: Tensor, grad: Tensor) -> Tensor | None:
        waiting = self.waiting.pop(parameter, None)
        if waiting is None:  # a further backward of the same closure adds to ``.grad`` as usual
            return None
        self.folded.add(parameter)
        with torch.no_grad():
            return waiting.add_(grad)

    def settle(self) -> bool:
        """Leave the sum in the ``.grad`` fields; returns whether all of it was folded in as gradients arrived."""
        self.close()
        late, self.waiting = self.waiting, {}
        for parameter, waiting in late.items():
            if parameter.grad is None:
                parameter.grad = waiting
        both = [p for p, waiting in late.items() if p.grad is not waiting]
        if both:
            space = self.memory.space("late", both)
            space.add_(space.gradients(), space.vector([late[p] for p in both]))
        return not late

    def close(self) -> None:
        """Stop adding."""
        while self._hooks:
            self._hooks.pop().remove()


class Watch:
    """Sees whether gradients were written to, replaced or dropped after the last backward.

    Versions count in-place writes, but DistributedDataParallel and FSDP2 write gradients themselves. Both are done when
    a backward returns, so that is when the versions are noted: by a callback of the autograd engine.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameters = list(parameters)
        self._noted: dict[Tensor, tuple[Tensor, int]] = {}
        self._rounds = 0
        self._hooks: list[Any] = [p.register_post_accumulate_grad_hook(self._arrived) for p in self.parameters]  # type: ignore[no-untyped-call]

    def _arrived(self, _: Tensor) -> None:
        if self._rounds == 0:
            self._queue(3)

    def _queue(self, rounds: int) -> None:
        self._rounds = rounds
        torch.autograd.Variable._execution_engine.queue_callback(self._ended)  # type: ignore[attr-defined]

    def _ended(self) -> None:
        # Callbacks that reducers queue meanwhile come between one round and the next.
        if self._rounds > 1:
            self._queue(self._rounds - 1)
            return
        self._rounds = 0
        self.note()

    def note(self) -> None:
        """What is in ``.grad`` now is as it should be."""
        grads = ((p, p.grad) for p in self.parameters)
        self._noted = {p: (grad, version(grad)) for p, grad in grads if grad is not None}

    def written(self) -> bool:
        """Whether a gradient was changed in place (clipped, zeroed, unscaled)."""
        return any(p.grad is grad and version(grad) != noted for p, (grad, noted) in self._noted.items())

    def replaced(self, among: set[Tensor]) -> bool:
        """Whether a gradient of these parameters is another tensor by now, or gone."""
        return any(p in among and p.grad is not grad for p, (grad, _) in self._noted.items())

    def close(self) -> None:
        """Stop watching."""
        while self._hooks:
            self._hooks.pop().remove()
        self._noted.clear()


class PassGradients:
    """The gradients of one pass: summed over its closures, and theirs alone.

    Args:
        memory: Where work buffers come from.
        parameters: Those that can have a gradient.
        exact: Whether the gradient's length matters, so that clipping it in the pass is a mistake.
    """

    def __init__(self, memory: Memory, parameters: list[Tensor], exact: bool) -> None:
        self.parameters, self.exact = parameters, exact
        self.sum = GradientSum(memory, parameters)
        self.watch = Watch(parameters) if exact else None

    def wait(self) -> None:
        """What is in the ``.grad`` fields is to be added to by the coming backward."""
        self.sum.wait()
        if self.sum.waiting and self.watch is None:
            self.watch = Watch(self.parameters)

    def settle(self) -> bool:
        """The sum in the ``.grad`` fields; returns whether all of it was added as gradients arrived."""
        if self.watch is not None and (self.watch.written() or self.watch.replaced(self.sum.folded)):
            raise RuntimeError(
                "the gradients were changed after the backward (zeroed, clipped or replaced) in a pass that adds them "
                "to others. Call opt.zero_grad() before the backward, not after it, and clip with max_norm="
                if self.sum.folded
                else "the gradients were changed in place after the backward, in a pass whose gradient decides the "
                "radius: clipped, they would give another radius. Clip with max_norm=, which does it after the passes; "
                "unscale by giving the scaler to clean() and perturbed(); average over processes with "
                "DistributedDataParallel, or assign p.grad = ... instead of writing into it"
            )
        return self.sum.settle()

    def rescale(self, factor: float) -> None:
        """Multiply the gradients of the pass, for a framework that has divided its losses by another number."""
        present = [p for p in self.parameters if p.grad is not None]
        space = self.sum.memory.space("rescaled", present)
        with torch.no_grad():
            space.scale_(space.gradients(), factor)
        if self.watch is not None:
            self.watch.note()

    def close(self) -> None:
        """Stop adding and watching."""
        self.sum.close()
        if self.watch is not None:
            self.watch.close()


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
            self.probe.register_hook(self._arriving),  # type: ignore[no-untyped-call]
            self.probe.register_post_accumulate_grad_hook(self._arrived),  # type: ignore[no-untyped-call]
        ]

    def _untouched(self) -> bool:
        return self.probe is not None and self.probe.grad is self.zeros and version(self.zeros) == self.version

    def _arriving(self, _: Tensor) -> None:
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

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameter = next((p for p in parameters if p.grad is not None), None)
        grad = None if self.parameter is None else self.parameter.grad
        self._grad = None if grad is None else weakref.ref(grad)
        self._version = 0 if grad is None else version(grad)
        self._added_to = False
        self._hook: Any = None
        if self.parameter is not None and dist.is_initialized():
            # Reducers write gradients too, so there only the arrival of the next one tells what it is added to.
            self._hook = self.parameter.register_hook(_weakly(self._arriving))  # type: ignore[no-untyped-call]

    def _arriving(self, _: Tensor) -> None:
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

    def hook(grad: Tensor) -> None:
        alive = reference()
        if alive is not None:
            alive(grad)

    return hook
