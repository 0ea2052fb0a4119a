"""The base optimizer's step, and the part of a step that goes beside it (decoupled WSAM)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from ._arithmetic import Space
from ._bases import Bases
from ._combiners import Combiner
from ._step import Step
from ._workers import workers

if TYPE_CHECKING:
    from ._loop import Loop


def descend(loop: Loop, step: Step, space: Space) -> None:
    """Clip, the base step with what is in ``.grad``, and ``w <- w - lr * beside`` after it."""
    beside = loop.memory.scratch("beside", covering="trainable") if step.beside else None
    if beside is not None and loop.local and workers(loop.model) is not None:
        for flat in beside.flat.values():
            dist.all_reduce(flat, group=workers(loop.model))
            flat.div_(dist.get_world_size(workers(loop.model)))
    if loop.max_norm is not None and beside is None:
        space.clip_(space.gradients(), loop.max_norm)
    elif loop.max_norm is not None and beside is not None:
        # The norm of the whole, and the same factor for both parts: with plain SGD it is clipped as one.
        whole = loop.memory.product().vector(space)
        space.copy_(whole, space.gradients())
        space.add_(whole, beside.vector(space))
        factor = space.clip_factor(whole, loop.max_norm)
        space.scale_(space.gradients(), factor)
        space.scale_(beside.vector(space), factor)
    loop.bases.step(step.loss)
    if beside is None:
        return
    opposed, stepped = loop.bases.maximized(), set(space.parameters)
    for number, group in enumerate(loop.bases.param_groups):
        for role, sign in (("minimized", -1.0), ("maximized", 1.0)):
            some = [p for p in group["params"] if p in stepped and (p in opposed) == (role == "maximized")]
            if some:
                part = loop.memory.space(f"beside {number} {role}", some)
                part.add_(part.weights(), beside.vector(part), sign * group["lr"])


def check_bases(combine: Combiner, bases: Bases) -> None:
    """Refuse bases beside which there is no step of one's own."""
    if combine.beside(0) is None:
        return
    for base in bases.all:
        name = type(base).__name__
        if hasattr(base, "train") and hasattr(base, "eval"):
            raise ValueError(
                f"{name} is schedule-free and keeps the weights it trains to itself: a step beside its own would be "
                "lost. Use decoupled=False"
            )
        missing = [index for index, group in enumerate(base.param_groups) if "lr" not in group]
        if missing:
            raise ValueError(
                f"group {missing[0]} of {name} has no lr, at which a step beside the base's is taken: use "
                "decoupled=False"
            )
