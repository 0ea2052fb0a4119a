"""Extra gradients near ``w``, from which a direction renews what it remembers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from . import _checks
from ._arithmetic import Vector
from ._gradients import clear
from ._passes import BatchStatistics, RandomState, evaluated, normalizers
from ._run import Phase

if TYPE_CHECKING:
    from ._loop import Loop


@torch.no_grad()
def refresh(loop: Loop, call: Callable[[], Any]) -> float:
    """Let the direction draft new values from gradients of ``call`` near ``w``; returns the passes it took.

    BatchNorm is in evaluation mode meanwhile, as in Eigen-SAM's own code, and random numbers repeat: finite differences
    need the same function at both ends.
    """
    loop.run.expect("refresh()", Phase.IDLE)
    space, parameters = loop.prepare(), loop.parameters()
    weights, backup = space.weights(), loop.memory.scratch("backup").vector(space)
    start = RandomState(kind.device for kind in space.kinds)
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
                parameter.grad = torch.zeros_like(parameter)
        return space.gradients()

    statistics = None if loop.model is None else BatchStatistics(loop.model)
    space.copy_(backup, weights)
    try:
        with evaluated([] if loop.model is None else normalizers(loop.model)):
            loop.parts.direction.refresh(space, loop.memory, gradient)
    except BaseException:
        loop.memory.discard()
        raise
    finally:
        space.copy_(weights, backup)
        torch.clear_autocast_cache()
        clear(parameters)
        if statistics is not None:
            statistics.restore()
    return float(calls)
