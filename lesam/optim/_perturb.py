"""Moving the weights to ``w + rho * eps_hat``, and back."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import _scaling
from ._arithmetic import Space, Vector
from ._climb import Climb, climb
from ._directions import Ascent
from ._last import Seen
from ._step import Step

if TYPE_CHECKING:
    from ._loop import Loop


def perturb(loop: Loop, around: ExitStack, step: Step, keep_gradient: bool) -> Tensor | None:
    """Climb; the weights come back when ``around`` is left.

    Nothing here may outlive the call but numbers: a reference to ``g`` would keep it in memory over the next pass.
    """
    direction, memory, bases = loop.parts.direction, loop.memory, loop.bases
    members = [p for p in step.chosen if direction.takes_part(p, memory, bases)]
    if len(members) < len(step.chosen):
        direction.refuse_missing(step.chosen, bases)
    if not members:
        return None
    space = memory.space("participants", members)
    g: Vector | None = space.gradients() if direction.passes == 2 else None
    g_norm = None if g is None else space.norm(g)
    ascent = Ascent(step.number, space, memory, g, g_norm, bases, share=step.share)
    if g is None and all(p.grad is not None for p in members):
        g_norm = space.norm(space.gradients())  # clean() was used around a one-pass step: to be looked at only
    climbed = climb(loop.parts, ascent, keep_gradient or bool(direction.remembers))

    space.copy_(memory.scratch("backup").vector(space), space.weights())
    around.callback(restore, loop, space)
    step.moved = space
    _climb(loop, space, climbed, step.number)
    direction.learn_before(ascent)
    if loop.history.fresh and g_norm is not None and not step.scale.given and loop.parts.loss_scale_matters:
        _scaling.refuse_unmentioned(float(g_norm))
    values: dict[str, Seen | None] = {"grad_norm": g_norm, "slope": climbed.slope, "rho": climbed.rho}
    step.seen.update({name: value for name, value in values.items() if value is not None})
    step.seen.update(sigma=climbed.sigma, capped=climbed.capped)
    return climbed.skip


def _climb(loop: Loop, space: Space, climbed: Climb, seed: int) -> None:
    """``w <- w + rho * eps_hat``; parameters that a base maximizes climb against their own descent."""
    opposed = set() if climbed.downhill else loop.bases.maximized()
    u, coefficient, room = climbed.u, climbed.coefficient, loop.memory.scratch("backup").space
    if not opposed:
        space.climb_(space.weights(), u, coefficient, climbed.skip, seed, within=room)
    else:
        for role, sign in (("minimized", coefficient), ("maximized", -coefficient)):
            some = [p for p in space.parameters if (p in opposed) == (role == "maximized")]
            part = loop.memory.space(role, some)
            part.climb_(part.weights(), space.part(u, part), sign, climbed.skip, seed, within=room)
    torch.clear_autocast_cache()  # an autocast around the whole step keeps low-precision copies of the weights


@torch.no_grad()
def restore(loop: Loop, space: Space) -> None:
    """The weights of ``space`` as they were before the pass."""
    backup = loop.memory.scratch("backup").vector(space)
    try:
        space.copy_(space.weights(), backup)
    except BaseException:  # a second Ctrl-C
        space.copy_(space.weights(), backup)
        raise
    finally:
        loop.step.moved = None
        torch.clear_autocast_cache()
