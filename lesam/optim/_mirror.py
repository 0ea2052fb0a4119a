"""A third pass at ``w - eps``, and what it tells about the curvature (CR-SAM)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import _checks
from ._combiners import Coefficient, Combiner
from ._workers import refuse_drift
from .schedules import Scalar, checked, value_at

if TYPE_CHECKING:
    from ._loop import Loop


class curvature(Combiner):  # noqa: N801 -- combiners read as verbs where they are used
    r"""CR-SAM: the perturbed loss, plus its second and its first central difference along the way up.

    .. math:: \hat g + \alpha\,(\hat g + \bar g - 2 g) + \beta\,(\hat g - \bar g), \qquad
              \bar g = \nabla L(w - \epsilon)

    is the gradient of :math:`L(w + \epsilon)` and of :math:`\alpha\,(L(w + \epsilon) + L(w - \epsilon) - 2 L(w))`, a
    finite difference of the curvature, and :math:`\beta\,(L(w + \epsilon) - L(w - \epsilon))`, one of the slope. Wu,
    Luo, Wunsch, *CR-SAM: Curvature Regularized Sharpness-Aware Minimization*, AAAI 2024.

    Where ``alpha`` equals ``beta`` the gradient at ``w - eps`` drops out, and there is no third pass.

    Example:
        >>> curvature(0.5, 0.25).constant(step=0), curvature(0.5, 0.25).mirror(step=0)
        ((1.75, -1.0), 0.25)
    """

    mixes_gradient = True
    mirrors = True

    def __init__(self, alpha: Scalar, beta: Scalar) -> None:
        self.alpha, self.beta = checked("alpha", alpha), checked("beta", beta)

    def constant(self, step: int) -> tuple[float, float]:
        alpha, beta = value_at(self.alpha, step), value_at(self.beta, step)
        return 1.0 + alpha + beta, -2.0 * alpha

    def mirror(self, step: int) -> float | None:
        return (value_at(self.alpha, step) - value_at(self.beta, step)) or None

    def coefficients(
        self, gg: Tensor | None, gh: Tensor | None, hh: Tensor | None, step: int
    ) -> tuple[Coefficient, Coefficient]:
        return self.constant(step)

    def __repr__(self) -> str:
        return f"curvature({self.alpha!r}, {self.beta!r})"


@contextmanager
def mirrored(loop: Loop) -> Iterator[None]:
    """Inside a second pass, around a further backward: at ``w - eps``, added to what the second pass has left.

    The weights are reflected at the backup, ``2 w - (w + eps)``, so nothing has to remember ``eps``; and they come back
    with those of the second pass.
    """
    step, gradients, mix = loop.step, loop.step.gradients, loop.step.mix
    if gradients is None or mix is None:
        raise RuntimeError("a mirrored pass belongs inside a second pass")
    _checks.some_gradient(step.trainable, "second pass")
    _checks.dense_gradients(step.trainable)
    if not gradients.settle() and loop.local:
        refuse_drift(loop.model)
    with torch.no_grad():
        mix.turn(step.trainable)
        if step.moved is not None:
            step.moved.reflect_(step.moved.weights(), loop.memory.scratch("backup").vector(step.moved))
    torch.clear_autocast_cache()
    gradients.wait()
    with nullcontext() if step.random is None else step.random.replayed():
        yield
    _checks.some_gradient(step.trainable, "third pass")
    step.cost += 1.0
