"""Carrying the clean gradient over the second pass, and mixing it in: ``a * g_hat + b * g``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._arithmetic import Space, Vector
from ._climb import not_finite
from ._combiners import Coefficient, Combiner, perturbed
from ._gradient_sum import clear
from ._memory import Memory
from ._scaling import poison


class Mixing(ABC):
    """One step's way of keeping ``g`` until ``g_hat`` is there.

    Args:
        combine: Chooses the coefficients.
        memory: Where work buffers come from.
        step: The step's number.
        scale: What a loss scaler multiplies the second backward's gradients by; the first are unscaled by then.
    """

    #: whether ``g`` must not be overwritten by the climb
    needs_gradient = False
    #: whether a part of the step goes beside the base optimizer: it lies in the work buffer of that name
    beside = False
    #: those who each had a perturbation of their own, and share what it teaches
    workers: Any = None

    def __init__(self, combine: Combiner, memory: Memory, step: int, scale: float | Tensor = 1.0) -> None:
        self.combine, self.memory, self.step, self.scale = combine, memory, step, scale
        self.gg: Tensor | None = None

    def look(self, space: Space) -> None:
        """Look at ``g`` in the ``.grad`` fields, and copy it if it has to be."""
        if "gg" in self.combine.products:
            self.gg = space.norm(space.gradients()).square()

    def hand_over(self, space: Space, count: int, skip: Tensor | None) -> None:
        """Leave in ``.grad`` what the second backward, a sum over ``count`` micro-batches, is to be added to.

        Where ``skip`` is 1 the first gradient is not finite and nothing was perturbed.
        """
        clear(space.parameters)

    @abstractmethod
    def mix(self, trainable: Sequence[Tensor], pairs: int = 0) -> None:
        """Turn what the second backward left in ``.grad`` into ``a * g_hat + b * g``.

        Earlier ``pairs`` of passes of the same step are in the part that goes beside the base optimizer already.
        """

    def turn(self, trainable: Sequence[Tensor]) -> None:
        """Between the passes at ``w + eps`` and ``w - eps``: get what is in ``.grad`` ready to be added to again."""
        raise RuntimeError(f"{self.combine!r} has no pass at w - eps")

    def _second(self, trainable: Sequence[Tensor]) -> Space:
        return self.memory.space("second gradients", [p for p in trainable if p.grad is not None])

    def _coefficients(self, space: Space, g: Sequence[Sequence[Tensor]] | None) -> tuple[Tensor, Coefficient, Tensor]:
        """``a``, ``b``, and 1 where they are not finite: then ``g_hat`` goes to the base optimizer as it is."""
        g_hat, products, gh, hh = space.gradients(), self.combine.products, None, None
        if "hh" in products:
            hh = space.norm(g_hat).square()
        if "gh" in products and g is not None:
            gh = space.dot([list(tensors) for tensors in g], g_hat, self.memory.product())
        if isinstance(self.scale, Tensor):  # g_hat is scaled, and so is the kept g
            unscale = 1.0 / space.scalar(self.scale).square()
            gh, hh = (None if product is None else product * unscale for product in (gh, hh))
        a, b = self.combine.coefficients(self.gg, gh, hh, self.step)
        a = space.scalar(a)
        skip = not_finite(a * b if isinstance(b, Tensor) else a)
        return a.nan_to_num(1.0, 1.0, 1.0), b, skip


class Drop(Mixing):
    """``b = 0``: ``g`` is not needed beyond its length."""

    def mix(self, trainable: Sequence[Tensor], pairs: int = 0) -> None:
        space, constant = self._second(trainable), self.combine.constant(self.step)
        a: Coefficient = self._coefficients(space, None)[0] if constant is None else constant[0]
        if isinstance(a, Tensor) or a != 1.0:
            space.scale_(space.gradients(), a)


class Fold(Mixing):
    """Coefficients known beforehand: the second backward is added to ``(b / a) g``, and no copy is needed."""

    needs_gradient = True

    def hand_over(self, space: Space, count: int, skip: Tensor | None) -> None:
        a, b = self.combine.constant(self.step) or (1.0, 0.0)
        ratio: float | Tensor = b / a
        self.a: float | Tensor = a
        if skip is not None:
            # Two equal gradients, not finite: their mean goes to the base, since b < 0 would turn infinities into NaN.
            ratio, self.a = ratio + skip * (1.0 - ratio), a + skip * (0.5 - a)
        space.scale_(space.gradients(), self.scale * ratio * count)

    def mix(self, trainable: Sequence[Tensor], pairs: int = 0) -> None:
        space = self._second(trainable)
        space.scale_(space.gradients(), self.a)


class Mirror(Fold):
    """A third gradient, at ``w - eps``, with the coefficient ``c``: it is added to ``(a / c) g_hat + (b / c) g``."""

    def hand_over(self, space: Space, count: int, skip: Tensor | None) -> None:
        super().hand_over(space, count, skip)
        self.skip = skip

    def turn(self, trainable: Sequence[Tensor]) -> None:
        a, _ = self.combine.constant(self.step) or (1.0, 0.0)
        c = self.combine.mirror(self.step) or 1.0
        factor: float | Tensor = a / c
        self.a = c
        if self.skip is not None:  # three equal gradients, not finite: their mean, as with two of them
            factor, self.a = factor + self.skip * (1.0 - factor), c + self.skip * (1 / 3 - c)
        space = self._second(trainable)
        space.scale_(space.gradients(), factor)


class Keep(Mixing):
    """Coefficients that follow from ``g_hat``: ``g`` goes into a work buffer."""

    def look(self, space: Space) -> None:
        super().look(space)
        self.first, buffer = space.parameters, self.memory.scratch("gradient", covering="trainable")
        if len(self.first) < len(buffer.space.parameters):
            buffer.clear()
        space.copy_(buffer.vector(space), space.gradients())
        if isinstance(self.scale, Tensor):
            space.scale_(buffer.vector(space), self.scale)

    def mix(self, trainable: Sequence[Tensor], pairs: int = 0) -> None:
        space, g = self._both(trainable)
        a, b, skip = self._coefficients(space, g)
        space.scale_(space.gradients(), a)
        space.add_(space.gradients(), g, b, skip)

    def _both(self, trainable: Sequence[Tensor]) -> tuple[Space, Vector]:
        """The space of the two gradients, and the first of them; the second is in ``.grad``."""
        for parameter in self.first:
            if parameter.grad is None:  # seen by the first pass only: its g_hat is zero
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)
        space = self._second(trainable)
        return space, self.memory.scratch("gradient", covering="trainable").vector(space)


class Teach(Keep):
    """The base optimizer gets ``g_hat``; the combiner learns from both gradients, for steps of one pass."""

    def mix(self, trainable: Sequence[Tensor], pairs: int = 0) -> None:
        space, g = self._both(trainable)
        gg = space.scalar(0.0) if self.gg is None else self.gg
        gh = space.dot(g, space.gradients(), self.memory.product())
        if isinstance(self.scale, Tensor):
            gh = gh / space.scalar(self.scale).square()
        self.combine.learn(space, self.memory, g, gg, gh, self.scale, self.workers)


class Beside(Keep):
    """The base optimizer gets ``g``; a multiple of ``g_hat - g`` goes into a work buffer, for a step beside it."""

    beside = True

    def mix(self, trainable: Sequence[Tensor], pairs: int = 0) -> None:
        space, g = self._both(trainable)
        buffer, difference = self.memory.scratch("beside", covering="trainable"), self.memory.product().vector(space)
        space.copy_(difference, space.gradients())
        space.add_(difference, g, -1.0)
        if pairs == 0:
            buffer.clear()
        weight = (self.combine.beside(self.step) or 0.0) / (pairs + 1) / self.scale  # both gradients are scaled
        space.scale_(buffer.vector(space), pairs / (pairs + 1))
        skip = not_finite(space.norm(difference))
        space.add_(buffer.vector(space), difference, weight, skip)
        space.copy_(space.gradients(), g)
        if isinstance(self.scale, Tensor):
            poison(space, skip)  # the scaler sees ``g`` alone, and is to find an overflow of ``g_hat``


def mixing(combine: Combiner | None, memory: Memory, step: int, scale: float | Tensor = 1.0) -> Mixing:
    """The cheapest way for ``combine``; for a step that is not sharpness-aware (None), ``g_hat`` alone."""
    combine = perturbed if combine is None else combine
    constant = combine.constant(step)
    if combine.beside(step) is not None:
        return Beside(combine, memory, step, scale)
    if combine.mirror(step) is not None:
        return Mirror(combine, memory, step, scale)
    if combine.remembers:
        return Teach(combine, memory, step, scale)
    if constant is not None:
        kind: type[Mixing] = Fold if constant[1] != 0.0 else Drop
    else:
        kind = Keep if combine.mixes_gradient else Drop
    return kind(combine, memory, step, scale)


@torch.no_grad()
def divide(space: Space, count: int) -> None:
    """From a sum over ``count`` micro-batches to their mean, in ``.grad``."""
    if count > 1:
        space.scale_(space.gradients(), 1.0 / count)


def mean_with(earlier: dict[Tensor, Tensor], pairs: int, memory: Memory, trainable: Sequence[Tensor]) -> None:
    """``.grad <- (pairs * earlier + .grad) / (pairs + 1)``: the mean over pairs of passes, each with its own ascent."""
    for parameter in earlier:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter, requires_grad=False)
    space = memory.space("second gradients", [p for p in trainable if p.grad is not None])
    space.scale_(space.gradients(), 1.0 / (pairs + 1))
    means = memory.space("earlier pairs", list(earlier))
    means.add_(means.gradients(), means.vector(list(earlier.values())), pairs / (pairs + 1))
