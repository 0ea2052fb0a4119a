"""Carrying the clean gradient over the second pass, and mixing it in: ``a * g_hat + b * g``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._combiners import Coefficient, Combiner, perturbed
from ._gradients import Carry, clear
from ._memory import Memory


class Mixing:
    """One step's way of keeping ``g`` until ``g_hat`` is there.

    Where the coefficients are known beforehand, ``(b / a) g`` stays in the ``.grad`` fields, the second backward adds
    to it, and no copy is needed. Where they follow from inner products with ``g_hat``, ``g`` goes into a work buffer.
    Where ``b`` is zero, ``g`` is dropped.
    """

    def __init__(self, combine: Combiner, memory: Memory, step: int) -> None:
        self.combine, self.memory, self.step = combine, memory, step
        constant = combine.constant(step)
        self.constant = constant
        self.adds_in_place = constant is not None and constant[1] != 0.0
        self.copies = constant is None and combine.mixes_gradient
        self.gg: Tensor | None = None
        self.first: list[Tensor] = []  # parameters that got a gradient in the first pass

    @classmethod
    def plain(cls, memory: Memory, step: int) -> Mixing:
        """The mixing of a step that takes the second gradient as it is."""
        return cls(perturbed, memory, step)

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

    def hand_over(self, trainable: Sequence[Tensor], factor: float | Tensor) -> Carry | None:
        """Leave the ``.grad`` fields ready for the second backward, which sees gradients times ``factor``."""
        if not self.adds_in_place or self.constant is None:
            clear(trainable)
            return None
        a, b = self.constant
        space = self.memory.space("first gradients", [p for p in trainable if p.grad is not None])
        space.scale_(space.gradients(), factor * (b / a))
        return Carry(trainable)

    def mix(self, trainable: Sequence[Tensor]) -> None:
        """Turn what the second backward left in ``.grad`` into ``a * g_hat + b * g``."""
        a, b = self._coefficients(trainable)
        if self.copies:
            self._add_kept(trainable, a, b)
        elif isinstance(a, Tensor) or a != 1.0:
            space = self.memory.space("second gradients", [p for p in trainable if p.grad is not None])
            space.scale_(space.gradients(), a)

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
        a, b = self.combine.coefficients(gg, gh, hh, self.step)
        # A non-finite gradient goes to the base optimizer as it is: what then happens is the base's own affair.
        finite = torch.isfinite(space.scalar(a)) & torch.isfinite(space.scalar(b))
        return torch.where(finite, space.scalar(a), 1.0), torch.where(finite, space.scalar(b), 0.0)

    def _add_kept(self, trainable: Sequence[Tensor], a: Coefficient, b: Coefficient) -> None:
        buffer = self.memory.scratch("gradient", covering="trainable")
        for parameter in self.first:
            if parameter.grad is None:  # seen by the first pass only: its g_hat is zero
                parameter.grad = torch.zeros_like(parameter)
        space = self.memory.space("second gradients", [p for p in trainable if p.grad is not None])
        g_hat = space.gradients()
        space.scale_(g_hat, a)
        space.add_(g_hat, buffer.vector(space), b, skip=(space.scalar(b) == 0).to(torch.float32))
