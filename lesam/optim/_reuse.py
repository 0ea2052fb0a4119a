"""What a second gradient taught, used again in steps of one pass (LookSAM)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._arithmetic import Space, Vector
from ._climb import not_finite
from ._combiners import Coefficient, Combiner
from ._memory import Memory
from .schedules import Scalar, checked, value_at

NAME = "orthogonal part"


class orthogonal(Combiner):  # noqa: N801
    r"""LookSAM: ``g_hat`` every few steps, and its part orthogonal to ``g`` in the steps between, at one pass.

    .. math:: g_v = \hat g - \frac{\langle g, \hat g\rangle}{\lVert g\rVert^2}\, g, \qquad
              \text{between: } g + \alpha\, \frac{\lVert g\rVert}{\lVert g_v\rVert}\, g_v

    The part orthogonal to ``g`` is what climbing has added, and it changes slowly. Liu et al., *Towards Efficient and
    Scalable Sharpness-Aware Minimization*, CVPR 2022.

    Example:
        >>> [orthogonal(0.7, every=3).rests(step) for step in range(4)]
        [False, True, True, False]
    """

    products = frozenset({"gg", "gh"})
    mixes_gradient = True
    remembers = (NAME,)

    def __init__(self, alpha: Scalar, every: int = 5) -> None:
        self.alpha = checked("alpha", alpha)
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise ValueError(f"every must be a whole number >= 1, got {every!r}")
        self.every = every

    def rests(self, step: int) -> bool:
        return step % self.every != 0

    def coefficients(
        self, gg: Tensor | None, gh: Tensor | None, hh: Tensor | None, step: int
    ) -> tuple[Coefficient, Coefficient]:
        return 1.0, 0.0

    def learn(
        self, space: Space, memory: Memory, g: Vector, gg: Tensor, gh: Tensor, scale: float | Tensor, group: Any
    ) -> None:
        """Draft ``g_v``; ``group`` are workers that each had a perturbation of their own.

        The gradients are multiplied by ``scale``, their products are not.
        """
        g_v, g_hat = memory.draft(NAME, space, covering="trainable"), space.gradients()
        share = gh / gg.clamp(min=torch.finfo(gg.dtype).tiny)
        space.copy_(g_v, g_hat)
        space.add_(g_v, g, -share)
        # Where climbing has added nothing, rounding is left, and would be blown up to the length of a gradient: of the
        # part along ``g``, whose square is <g, g_hat>^2 / |g|^2.
        rounding = 256 * torch.finfo(space.scalar_dtype).eps
        added = torch.addcmul(space.norm(g_v).square(), share, gh, value=-(rounding**2)) > 0
        space.scale_(g_v, added / scale)
        if group is not None:  # else their weights would drift apart in the steps between
            for flat in memory.scratch(f"next {NAME}", covering="trainable").flat.values():
                dist.all_reduce(flat, group=group)
                flat.div_(dist.get_world_size(group))

    def reuse(self, space: Space, memory: Memory, step: int) -> None:
        g_v = memory.recall(NAME, space)
        length = space.norm(g_v)
        weight = value_at(self.alpha, step) * space.norm(space.gradients()) / length
        # No g_v yet, or one that is not finite: g alone.
        space.add_(space.gradients(), g_v, weight.nan_to_num(0.0, 0.0, 0.0), not_finite(weight * length))

    def __repr__(self) -> str:
        return f"orthogonal({self.alpha!r}, every={self.every!r})"
