"""Carrying the clean gradient over the second pass, and mixing it in: ``a * g_hat + b * g``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._climb import not_finite
from ._combiners import Coefficient, Combiner, perturbed
from ._gradients import Carry, clear
from ._memory import Memory


class Mixing:
    """One step's way of keeping ``g`` until ``g_hat`` is there.

    Where the coefficients are known beforehand, ``(b / a) g`` stays in the ``.grad`` fields, the second backward adds
    to it, and no copy is needed. Where they follow from inner products with ``g_hat``, ``g`` goes into a work buffer.
    Where ``b`` is zero, ``g`` is dropped.
    """

    def __init__(self, combine: Combiner | None, memory: Memory, step: int, scale: float | Tensor = 1.0) -> None:
        combine = perturbed if combine is None else combine
        self.scale = scale  # of the second backward's gradients, by a loss scaler; the first are unscaled by now
        self.combine, self.memory, self.step = combine, memory, step
        constant = combine.constant(step)
        self.constant = constant
        self.adds_in_place = constant is not None and constant[1] != 0.0
        self.copies = constant is None and combine.mixes_gradient
        self.gg: Tensor | None = None
        self.a: Tensor | None = None  # stands in for the constant where the first gradient may not be finite
        self.first: list[Tensor] = []  # parameters that got a gradient in the first pass

    def keep(self, parameters: Sequence[Tensor]) -> None:
        """Look at ``g`` in the ``.grad`` fields of ``parameters``, and copy it if it has to be."""
        space = self.memory.space("first gradients", parameters)
        self.first, g = space.parameters, space.gradients()
        if "gg" in self.combine.products:
            self.gg = space.norm(g).square()
        if self.copies:
            buffer = self.memory.scratch("gradient", covering="trainable")
            if len(parameters) < len(buffer.space.parameters):
                buffer.clear()
            space.copy_(buffer.vector(space), g)
            if isinstance(self.scale, Tensor):
                space.scale_(buffer.vector(space), self.scale)

    def hand_over(self, parameters: Sequence[Tensor], micro_batches: int, skip: Tensor | None) -> Carry | None:
        """Leave the ``.grad`` fields ready for the second backward, a sum over so many micro-batches.

        Where ``skip`` is 1 the first gradient is not finite and nothing was perturbed: the two gradients are then the
        same, and their mean goes to the base optimizer (``b < 0`` would turn its infinities into NaN).
        """
        if not self.adds_in_place or self.constant is None:
            clear(parameters)
            return None
        a, b = self.constant
        space = self.memory.space("first gradients", self.first)
        ratio: float | Tensor = b / a
        if skip is not None:
            ratio, self.a = ratio + skip * (1.0 - ratio), a + skip * (0.5 - a)
        space.scale_(space.gradients(), self.scale * ratio * micro_batches)
        return Carry(self.first)

    def mix(self, trainable: Sequence[Tensor]) -> None:
        """Turn what the second backward left in ``.grad`` into ``a * g_hat + b * g``."""
        a, b = self._coefficients(trainable)
        a = a if self.a is None else self.a
        skip: Tensor | None = None
        if self.constant is None:
            # A non-finite gradient goes to the base optimizer as it is: what then happens is the base's own affair.
            a = self.memory.space("trainable", trainable).scalar(a)
            skip = not_finite(a * b if isinstance(b, Tensor) else a)
            a = a.nan_to_num(1.0, 1.0, 1.0)
        if self.copies:
            for parameter in self.first:
                if parameter.grad is None:  # seen by the first pass only: its g_hat is zero
                    parameter.grad = torch.zeros_like(parameter)
        space = self.memory.space("second gradients", [p for p in trainable if p.grad is not None])
        if isinstance(a, Tensor) or a != 1.0:
            space.scale_(space.gradients(), a)
        if self.copies:
            kept = self.memory.scratch("gradient", covering="trainable").vector(space)
            space.add_(space.gradients(), kept, b, skip)

    def _coefficients(self, trainable: Sequence[Tensor]) -> tuple[Coefficient, Coefficient]:
        if self.constant is not None:
            return self.constant
        space = self.memory.space("second gradients", [p for p in trainable if p.grad is not None])
        g_hat, products = space.gradients(), self.combine.products
        hh = space.norm(g_hat).square() if "hh" in products else None
        gg, gh = self.gg, None
        if "gh" in products:
            g = self.memory.scratch("gradient", covering="trainable").vector(space)
            gh = space.dot(g, g_hat, self.memory.product())
        if isinstance(self.scale, Tensor):  # g_hat is scaled, and so is the kept g
            unscale = 1.0 / space.scalar(self.scale).square()
            gh, hh = (None if product is None else product * unscale for product in (gh, hh))
        return self.combine.coefficients(gg, gh, hh, self.step)
