"""Extra gradients near ``w``, from which a direction renews what it remembers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from . import _checks
from ._arithmetic import Vector
from ._buffers import evaluated, normalisers
from ._gradient_sum import clear
from ._perturb import restore
from ._replay import RandomState

if TYPE_CHECKING:
    from ._loop import Loop


@torch.no_grad()
def refresh(loop: Loop, call: Callable[[], Any]) -> float:
    """Let the direction draft new values from gradients of ``call`` near ``w``; returns the passes it took.

    BatchNorm is in evaluation mode meanwhile, as in Eigen-SAM's own code, and random numbers repeat: finite differences
    need the same function at both ends.
    """
    space, parameters, memory = loop.prepare(), loop.bases.parameters(), loop.memory
    weights, backup = space.weights(), memory.scratch("backup").vector(space)
    start = RandomState((kind.device for kind in space.kinds), loop.generators or ())
    calls = 0

    def gradient(v: Vector, h: float) -> Vector:
        nonlocal calls
        calls += 1
        space.copy_(weights, backup)
        space.add_(weights, v, h)
        torch.clear_autocast_cache()
        clear(parameters)
        with start.replayed(), torch.enable_grad():
            call()
        _checks.some_gradient(loop.trainable(), "closure")
        _checks.dense_gradients(parameters)
        for parameter in space.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)
        return space.gradients()

    with ExitStack() as undo:
        undo.callback(clear, parameters)
        if loop.keep_buffers is not None:
            undo.callback(loop.keep_buffers().restore)
        if loop.model is not None:
            undo.enter_context(evaluated(normalisers(loop.model)))
        space.copy_(backup, weights)
        undo.callback(restore, loop, space)
        loop.step.moved = space
        undo.push(lambda kind, *_: memory.discard() if kind is not None else None)
        loop.parts.direction.refresh(space, memory, gradient)
    return float(calls)
