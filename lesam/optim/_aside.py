"""A step under way set aside: the model as the last step left it, to be looked at and saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ._arithmetic import Space, clone_all
from ._step import Phase

if TYPE_CHECKING:
    from ._loop import Loop


@contextmanager
def at_last_step(loop: Loop) -> Iterator[None]:
    """Inside, weights and buffers are those of the last step, wherever the step under way stands.

    For frameworks that validate or save in the middle of a step: between two micro-batches or, in a signal handler,
    between a forward and its backward, so autograd is not to notice.
    """
    step = loop.step
    if step.phase is Phase.ASIDE or (step.phase is Phase.IDLE and step.moved is None):
        yield
        return
    now = None if step.buffers is None or loop.keep_buffers is None else loop.keep_buffers()
    touched = [*loop.bases.parameters(), *([] if now is None else now.tensors())]
    with ExitStack() as unnoticed:
        for tensor in touched:
            unnoticed.enter_context(_unsafe_preserve_version_counter(tensor))
        phase, step.phase = step.phase, Phase.ASIDE
        _exchange(loop, step.moved)
        if step.buffers is not None:
            step.buffers.restore()
        try:
            yield
        finally:
            _exchange(loop, step.moved)
            if now is not None:
                now.restore()
            step.phase = phase


@torch.no_grad()
def _exchange(loop: Loop, space: Space | None) -> None:
    """Swap perturbed weights with their backup."""
    if space is None:
        return
    weights, backup = space.weights(), loop.memory.scratch("backup").vector(space)
    kept = [clone_all(tensors) for tensors in weights]
    space.copy_(weights, backup)
    space.copy_(backup, kept)
    torch.clear_autocast_cache()
