"""What every long-hand reference shares: the passes, the restored weights and four lines of vector algebra.

A "vector" here is a list with one tensor per parameter, in the order of the parameters. An entry is ``None``
where a pass left no gradient; such an entry counts as zero in sums and leaves its parameter alone.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Vector = list[Tensor | None]
Closure = Callable[[], Tensor]
Scalar = float | Callable[[int], float]


def dot(xs: Sequence[Tensor | None], ys: Sequence[Tensor | None]) -> float:
    """``<x, y>``, one number over all tensors."""
    total = 0.0
    for x, y in zip(xs, ys, strict=True):
        if x is not None and y is not None:
            total += float((x * y).sum())
    return total


def norm(xs: Sequence[Tensor | None]) -> float:
    """``|x|``: the global Euclidean norm, never one norm per tensor."""
    return math.sqrt(dot(xs, xs))


def scaled(factor: float, xs: Sequence[Tensor | None]) -> Vector:
    """``factor * x``."""
    return [None if x is None else factor * x for x in xs]


def plus(xs: Sequence[Tensor | None], ys: Sequence[Tensor | None]) -> Vector:
    """``x + y``."""
    total: Vector = []
    for x, y in zip(xs, ys, strict=True):
        if x is None or y is None:
            total.append(y if x is None else x)
        else:
            total.append(x + y)
    return total


class Reference:
    """A published method written out tensor by tensor.

    Subclasses implement `step`. They read their scalars through `at_this_step`, take gradients with
    `gradient` and `gradient_at`, and end with `base_step`, where the step counter (from 0) advances.
    """

    def __init__(self, parameters: Sequence[Tensor], base: torch.optim.Optimizer) -> None:
        self.parameters = list(parameters)
        self.base = base
        self.t = 0

    def step(self, closure: Closure) -> Tensor:
        """Take one step; return the loss of its first pass, which is the clean loss of a two-pass method."""
        raise NotImplementedError

    def at_this_step(self, scalar: Scalar) -> float:
        """The value of a hyper-parameter that is a number or a schedule ``step -> number``."""
        return scalar(self.t) if callable(scalar) else scalar

    def gradient(self, closure: Closure) -> tuple[Tensor, Vector]:
        """Loss and gradient where the weights now are."""
        with torch.enable_grad():
            loss = closure()
        return loss.detach(), [None if w.grad is None else w.grad.detach().clone() for w in self.parameters]

    @torch.no_grad()
    def gradient_at(self, eps: Sequence[Tensor | None], closure: Closure) -> tuple[Tensor, Vector]:
        """Loss and gradient at ``w + eps``; the weights are copied back, not subtracted back."""
        backup = [w.detach().clone() for w in self.parameters]
        for w, e in zip(self.parameters, eps, strict=True):
            if e is not None:
                w.add_(e)
        loss, g_hat = self.gradient(closure)
        for w, original in zip(self.parameters, backup, strict=True):
            w.copy_(original)
        return loss, g_hat

    def base_step(self, update: Sequence[Tensor | None]) -> None:
        """Hand ``update`` to the base optimizer as the gradient."""
        for w, u in zip(self.parameters, update, strict=True):
            w.grad = None if u is None else u.clone()
        self.base.step()
        self.t += 1
