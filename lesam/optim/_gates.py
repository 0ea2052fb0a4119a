"""Gates: whether a step takes its second pass, decided by a value seen in the first (AE-SAM)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from ._step import Step
from ._workers import agreed, workers
from .schedules import Scalar, checked, value_at

if TYPE_CHECKING:
    from ._loop import Loop


class Gate(ABC):
    """Decides from the squared norm of ``g`` whether the step climbs, or descends with ``g`` as it is.

    The norm runs over all parameters with a gradient, is that of the unscaled loss, and equal on all workers. Reading
    it is the one time in a step that the host waits for the device.
    """

    #: what it starts from: numbers that are kept between steps and saved in the base's groups
    start: Mapping[str, float] = {}

    @abstractmethod
    def decide(self, square: float, noted: Mapping[str, float], step: int) -> tuple[bool, dict[str, float]]:
        """Whether to climb at a finite ``square``, and the numbers to keep if the step is taken."""


class LargeGradients(Gate):
    r"""Climb where the squared norm of the gradient is large for these times.

    .. math:: \lVert g\rVert^2 \ge \mu_t + c_t\, \sigma_t, \qquad
              \mu_t = \delta \mu_{t-1} + (1 - \delta) \lVert g\rVert^2, \quad
              \sigma_t^2 = \delta \sigma_{t-1}^2 + (1 - \delta) (\lVert g\rVert^2 - \mu_t)^2

    Jiang et al., *An Adaptive Policy to Employ Sharpness-Aware Minimization*, ICLR 2023.

    Args:
        threshold: :math:`c_t`, in standard deviations; may be negative.
        decay: :math:`\delta`.

    Example:
        >>> gate = LargeGradients(threshold=0.0, decay=0.5)
        >>> gate.decide(4.0, {"square_mean": 5.0, "square_variance": 0.0}, step=0)
        (False, {'square_mean': 4.5, 'square_variance': 0.125})
    """

    start: Mapping[str, float] = {"square_mean": 0.0, "square_variance": 0.0}

    def __init__(self, threshold: Scalar = 0.0, decay: Scalar = 0.9) -> None:
        self.threshold = checked("threshold", threshold, low=-math.inf)
        self.decay = checked("decay", decay, 0.0, 1.0)

    def decide(self, square: float, noted: Mapping[str, float], step: int) -> tuple[bool, dict[str, float]]:
        delta, c = value_at(self.decay, step), value_at(self.threshold, step)
        mean = delta * noted["square_mean"] + (1 - delta) * square
        variance = delta * noted["square_variance"] + (1 - delta) * (square - mean) ** 2
        large = square >= mean + c * math.sqrt(variance)
        return large, {"square_mean": mean, "square_variance": variance}

    def __repr__(self) -> str:
        return f"LargeGradients(threshold={self.threshold!r}, decay={self.decay!r})"


@torch.no_grad()
def opened(gate: Gate, loop: Loop, step: Step) -> bool:
    """Whether the step climbs, with ``g`` in ``.grad``: asked once, for several local pairs by the first of them."""
    if not step.sharp or step.pairs > 0:
        return step.sharp
    space = loop.memory.space("first gradients", [p for p in step.trainable if p.grad is not None])
    norm = space.norm(space.gradients()) / space.scalar(step.scale.factor())
    if loop.perturb is None:
        step.seen["grad_norm"] = norm
    square = float(agreed(norm.square(), workers(loop.model)))  # the one time that the host waits
    if not math.isfinite(square):
        return True  # nothing to decide by: the climb itself stays where it is, and a loss scaler hears of it
    large, step.noted = gate.decide(square, loop.bases.noted(gate.start), step.number)
    return large
