"""Sums of gradients, collected out of the user's reach.

Users clear gradients in many ways: ``opt.zero_grad()``, ``model.zero_grad()``, ``p.grad = None``, ``p.grad.zero_()``,
or not at all. So before every backward the ``.grad`` fields are empty, and what the backward is to be added to waits
here: whatever the code does to ``.grad`` before it, the sum is the right one. What is done to ``.grad`` *after* a
backward changes the gradient, and :class:`Watch` sees it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._kinds import local
from ._memory import Memory


def clear(parameters: Iterable[Tensor]) -> None:
    """Drop the gradients."""
    for parameter in parameters:
        parameter.grad = None


def owns_memory(grad: Tensor) -> bool:
    """Whether nobody else holds the memory of ``grad``, who may write to it again.

    Others hold the parts of a bucket (DistributedDataParallel's ``gradient_as_bucket_view``) and the static outputs of
    a CUDA graph. FSDP2's gradients are parts as well, but of a tensor that is made anew in each backward.
    """
    return hasattr(grad, "device_mesh") or _holders(grad) == _ALONE


def _holders(tensor: Tensor) -> int:
    """How many hold the memory of ``tensor``; some versions of torch count the caller as well."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


_ALONE = _holders(torch.empty(0, device="cpu"))


def held(parameters: Iterable[Tensor]) -> dict[Tensor, Tensor]:
    """The gradients, out of the ``.grad`` fields and safe from the next backward and from the user's code.

    A gradient that somebody else may write to again is copied: one whose memory, or the tensor itself, others hold.
    """
    taken: dict[Tensor, Tensor] = {}
    for parameter in parameters:
        grad = parameter.grad
        if grad is not None:
            known_elsewhere = sys.getrefcount(grad) > _REFERENCES
            grad = grad.detach() if grad.requires_grad else grad
            grad = grad.resolve_conj() if grad.is_conj() else grad
            if known_elsewhere or not owns_memory(grad):
                grad = grad.clone(memory_format=torch.preserve_format)
            taken[parameter] = grad
            parameter.grad = None
    return taken


def _references_of_a_gradient() -> int:
    parameter = torch.nn.Parameter(torch.zeros(1, device="cpu"))
    parameter.grad = torch.zeros(1, device="cpu")
    grad = parameter.grad
    return sys.getrefcount(grad)


_REFERENCES = _references_of_a_gradient()


@torch.no_grad()
def own_norm(grads: Sequence[Tensor]) -> Tensor | None:
    """The norm of what this process holds of some gradients: a look at the values that asks no other process."""
    dense = [grad.resolve_conj() for grad in grads if grad.layout is torch.strided]
    norms = [torch.linalg.vector_norm(local(grad).float()) for grad in dense]
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms])) if norms else None


def before_accumulation(memory: Memory, parameter: Tensor, hook: Any) -> Any:
    """Call ``hook(grads)`` when a backward is about to write to ``parameter.grad``; ``autograd.grad`` calls it not.

    Gradients of sharded parameters (DTensor) are not written by autograd, so there nothing is ever called.
    """
    if hasattr(parameter, "device_mesh"):
        return _NeverCalled()
    return memory.accumulator(parameter).register_prehook(hook)


class _NeverCalled:
    def remove(self) -> None:
        """Nothing was registered."""


class GradientSum:
    """What the backwards of a pass are to be added to, and the addition.

    A hook adds the waiting tensor to a gradient when autograd is about to put it into ``.grad``: one addition a tensor
    and no further memory, and a reduction over workers that follows is one of the sum. Gradients that come another way
    (FSDP2's, or assigned by hand) are added by :meth:`settle`.

    Example:
        >>> w = torch.nn.Parameter(torch.ones(2))
        >>> w.grad = torch.tensor([1.0, 2.0])
        >>> total = GradientSum(Memory(), [w])
        >>> total.wait()
        >>> w.grad is None
        True
        >>> (3 * w).sum().backward()
        >>> _ = total.settle()
        >>> w.grad
        tensor([4., 5.])
    """

    def __init__(self, memory: Memory, parameters: list[Tensor]) -> None:
        self.memory, self.parameters = memory, parameters
        self.waiting: dict[Tensor, Tensor] = {}
        self.folded: set[Tensor] = set()
        self.lost = False  # a sum was cleared or changed between two backwards of one closure
        self.watch: Watch | None = None
        self._hooks: list[Any] = []

    def wait(self) -> None:
        """Empty the ``.grad`` fields: what is in them waits to be added to."""
        if self.watch is not None:
            self.watch.forget()
        self.waiting = held(self.parameters)
        self.folded.clear()
        for parameter in self.waiting:
            if not self._hooked_by_others(parameter):
                self._hooks.append(before_accumulation(self.memory, parameter, partial(self._fold, parameter)))

    def _hooked_by_others(self, parameter: Tensor) -> bool:
        """Whether a hook of the user's is to see the closure's own gradient, and may change it."""
        hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
        # Several workers reduce what is in .grad, so there the sum has to be in it.
        return len(hooks) > (self.watch is not None) and not dist.is_initialized()

    def _fold(self, parameter: Tensor, grads: tuple[Tensor, ...]) -> tuple[Tensor] | None:
        if grads[0] is None or parameter not in self.waiting:
            # A further backward of the same closure: autograd adds it to ``.grad`` as usual.
            gone = parameter.grad is None or (self.watch is not None and self.watch.touched(parameter))
            self.lost |= parameter in self.folded and gone
            return None
        if grads[0].requires_grad:
            raise RuntimeError(
                "backward(create_graph=True) in a pass whose gradients are added to others would differentiate the "
                "sum: use torch.autograd.grad(loss, parameters, create_graph=True) for a penalty on the gradient"
            )
        self.folded.add(parameter)
        with torch.no_grad():
            return (self.waiting.pop(parameter).add_(grads[0]),)

    def settle(self) -> bool:
        """Leave the sum in the ``.grad`` fields; returns whether all of it was folded in as gradients arrived."""
        late, self.waiting = self.waiting, {}
        self.close()
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
        self.waiting = {}
        while self._hooks:
            self._hooks.pop().remove()


class Watch:
    """Sees whether gradients were written to, replaced or dropped after the last backward.

    Versions count in-place writes, but DistributedDataParallel writes gradients itself. It is done when a backward
    returns, so that is when the versions are noted: by a callback of the autograd engine. Some writes move no version
    (``p.grad.data.mul_()``, clipping a DTensor's): with ``look`` the values are noted as well, which waits for them.
    """

    def __init__(self, parameters: Iterable[Tensor], look: bool) -> None:
        self.parameters, self.look = list(parameters), look
        self._noted: dict[Tensor, tuple[Tensor, int]] = {}
        self._norm: Tensor | None = None
        self._rounds, self._task = 0, -1
        self._hooks: list[Any] = []
        for p in self.parameters:
            self._hooks.append(p.register_post_accumulate_grad_hook(self._arrived))  # type: ignore[no-untyped-call]

    def _arrived(self, _: Tensor) -> None:
        task = torch._C._current_graph_task_id()
        if self._rounds == 0 or task != self._task:  # the latter: a backward before it has failed
            self._task = task
            self._queue(3)

    def _queue(self, rounds: int) -> None:
        self._rounds = rounds
        torch.autograd.Variable._execution_engine.queue_callback(self._ended)

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
        self._noted = {p: (grad, grad._version) for p, grad in grads if grad is not None}
        self._norm = self._norm_now() if self.look else None

    def _norm_now(self) -> Tensor | None:
        return own_norm([p.grad for p in self._noted if p.grad is not None])

    def touched(self, parameter: Tensor) -> bool:
        """Whether the gradient of ``parameter`` is not what the last backward left."""
        if parameter not in self._noted:
            return False  # nothing is known yet: it arrives twice in one backward
        grad, noted = self._noted[parameter]
        return parameter.grad is not grad or grad._version != noted

    def forget(self) -> None:
        """Hold no gradient any more."""
        self._noted.clear()
        self._norm = None

    def written(self) -> bool:
        """Whether a gradient was changed in place (clipped, zeroed, unscaled)."""
        if any(p.grad is grad and grad._version != noted for p, (grad, noted) in self._noted.items()):
            return True
        if self._norm is None or any(p.grad is not grad for p, (grad, _) in self._noted.items()):
            return False
        now = self._norm_now()
        return now is not None and not torch.equal(now.nan_to_num(), self._norm.nan_to_num())

    def replaced(self, among: Collection[Tensor]) -> bool:
        """Whether a gradient of these parameters is another tensor by now, or gone."""
        return any(p in among and p.grad is not grad for p, (grad, _) in self._noted.items())

    def close(self) -> None:
        """Stop watching."""
        while self._hooks:
            self._hooks.pop().remove()
        self.forget()


class PassGradients:
    """The gradients of one pass: summed over its closures, and theirs alone.

    Args:
        memory: Where work buffers come from.
        parameters: Those that can have a gradient.
        exact: Whether the gradient's length matters, so that clipping it in the pass is a mistake.
        look: Whether values may be looked at, which waits for the device.
    """

    def __init__(self, memory: Memory, parameters: list[Tensor], exact: bool, look: bool) -> None:
        self.parameters, self.look = parameters, look
        self.sum = GradientSum(memory, parameters)
        self.watch = Watch(parameters, look) if exact else None

    def wait(self) -> None:
        """What is in the ``.grad`` fields is to be added to by the coming backward."""
        if self.watch is None and any(p.grad is not None for p in self.parameters):
            self.watch = Watch(self.parameters, self.look)
        self.sum.watch = self.watch
        self.sum.wait()

    @torch.no_grad()
    def settle(self) -> bool:
        """The sum in the ``.grad`` fields; returns whether all of it was added as gradients arrived."""
        changed = self.watch is not None and (self.watch.written() or self.watch.replaced(self.sum.folded))
        if changed or self.sum.lost:
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
