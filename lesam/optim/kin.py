"""The methods' kin: later and cheaper ones on the same loop, each a name for a choice of parts.

Two more need no class: Late SAM is any method with ``when=lesam.schedules.from_step(n)``, SAM-ON any with ``perturb=``
the parameters of the norm layers.
"""

from __future__ import annotations

from typing import Any

import torch  # noqa: F401 -- for the examples

from ._averages import Averaged, Drift
from ._bases import Base
from ._combiners import weighted
from ._gates import LargeGradients
from ._mirror import curvature
from ._radii import Fixed
from ._reuse import orthogonal
from ._sharpness_aware import SharpnessAware
from .schedules import Scalar


class LookSAM(SharpnessAware):
    r"""LookSAM: SAM every few steps, and between them what its gradient added, used again.

    Between two steps of SAM one pass, and a descent with :math:`g + \alpha\, g_v \lVert g\rVert / \lVert g_v\rVert`;
    :math:`g_v` is the part of the last :math:`\hat g` orthogonal to the gradient :math:`g` of its step.

    Args:
        base: The optimizer to wrap.
        rho: The radius.
        alpha: Weight of the part that is used again; 0 is SAM every few steps.
        every: Steps from one step of SAM to the next; 1 is SAM.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> opt = LookSAM(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1), every=10)

    References:
        Liu, Mai, Chen, Hsieh, You: *Towards Efficient and Scalable Sharpness-Aware Minimization*, CVPR 2022.
    """

    title = "LookSAM"

    def __init__(self, base: Base, rho: Scalar = 0.05, alpha: Scalar = 0.7, every: int = 5, **options: Any) -> None:
        super().__init__(base, radius=Fixed(rho), combine=orthogonal(alpha, every), **options)


class AESAM(SharpnessAware):
    r"""AE-SAM: two passes only where the gradient is large for these times.

    A step of SAM where :math:`\lVert g\rVert^2 \ge \mu_t + c_t\,\sigma_t`, with running mean :math:`\mu` and deviation
    :math:`\sigma` of :math:`\lVert g\rVert^2`, else a plain one. The decision waits for the device once a step.

    Args:
        base: The optimizer to wrap.
        rho: The radius.
        threshold: :math:`c_t`. The paper's falls over training: ``lesam.schedules.warmup(-1.0, total, start=1.0)``.
        decay: Of the running statistics.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> opt = AESAM(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1), threshold=0.5)
        >>> opt.passes  # at most; exact after clean()
        2

    References:
        Jiang, Yang, Zhang, Kwok: *An Adaptive Policy to Employ Sharpness-Aware Minimization*, ICLR 2023.
    """

    title = "AE-SAM"

    def __init__(
        self, base: Base, rho: Scalar = 0.05, threshold: Scalar = 0.0, decay: Scalar = 0.9, **options: Any
    ) -> None:
        super().__init__(base, radius=Fixed(rho), gate=LargeGradients(threshold, decay), **options)


class VaSSO(SharpnessAware):
    r"""VaSSO: climb a running average of the gradient, with less of a batch's noise.

    Climbs :math:`\epsilon = \rho\, d / \lVert d\rVert` with :math:`d_t = (1 - \theta)\, d_{t-1} + \theta\, g_t`.

    Args:
        base: The optimizer to wrap.
        rho: The radius.
        theta: Weight of this step's gradient in the average; 1 is SAM.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> opt = VaSSO(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1), theta=0.4)

    References:
        Li, Giannakis: *Enhancing Sharpness-Aware Optimization Through Variance Suppression*, NeurIPS 2023.
    """

    def __init__(self, base: Base, rho: Scalar = 0.05, theta: Scalar = 0.2, **options: Any) -> None:
        super().__init__(base, direction=Averaged(theta), radius=Fixed(rho), **options)


class WSAM(SharpnessAware):
    r"""WSAM: the sharpness as a regulariser, with a weight of its own.

    Descends :math:`L(w) + a\,(L(w + \epsilon) - L(w))` with :math:`a = \gamma / (1 - \gamma)` and SAM's
    :math:`\epsilon`. Decoupled, the base steps with :math:`g`, and :math:`w \leftarrow w - \eta\, a\, (\hat g - g)`
    follows at its learning rate :math:`\eta`; else the base steps with :math:`(1 - a)\, g + a\, \hat g`.

    Args:
        base: The optimizer to wrap.
        rho: The radius.
        gamma: Share of the sharpness, in [0, 1): 0 is the base optimizer, 1/2 (coupled) SAM.
        decoupled: Whether the sharpness goes past the base optimizer's momentum and preconditioner.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> opt = WSAM(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1), gamma=0.8)

    References:
        Yue, Jiang, Ye, Gao, Liu, Zhang: *Sharpness-Aware Minimization Revisited: Weighted Sharpness as a
        Regularization Term*, KDD 2023.
    """

    def __init__(
        self, base: Base, rho: Scalar = 0.05, gamma: Scalar = 0.9, decoupled: bool = True, **options: Any
    ) -> None:
        super().__init__(base, radius=Fixed(rho), combine=weighted(gamma, decoupled), **options)


class EMASAM(SharpnessAware):
    r"""EMA-SAM: one pass, a fixed distance away from a running average of the weights.

    The pass is at :math:`w + \rho\, u / \lVert u\rVert` with :math:`u = w - v` and
    :math:`v_t = \beta\, v_{t-1} + (1 - \beta)\, w_t`. The first step perturbs nothing.

    Args:
        base: The optimizer to wrap.
        rho: The radius.
        decay: :math:`\beta`, of the average.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> opt = EMASAM(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1), decay=0.99)
    """

    title = "EMA-SAM"

    def __init__(self, base: Base, rho: Scalar = 0.05, decay: Scalar = 0.999, **options: Any) -> None:
        super().__init__(base, direction=Drift(decay), radius=Fixed(rho), **options)


class CRSAM(SharpnessAware):
    r"""CR-SAM: SAM with a penalty on the curvature along its perturbation, from a third pass on the other side.

    Descends :math:`\hat g + \alpha\,(\hat g + \bar g - 2 g) + \beta\,(\hat g - \bar g)` with :math:`\hat g` and
    :math:`\bar g` the gradients at :math:`w + \epsilon` and :math:`w - \epsilon`, and SAM's :math:`\epsilon`.

    Three passes a step, with closures only.

    Args:
        base: The optimizer to wrap.
        rho: The radius.
        alpha: Weight of the curvature.
        beta: Weight of the slope.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> opt = CRSAM(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1), alpha=0.2)
        >>> opt.passes
        3

    References:
        Wu, Luo, Wunsch: *CR-SAM: Curvature Regularized Sharpness-Aware Minimization*, AAAI 2024.
    """

    title = "CR-SAM"

    def __init__(
        self, base: Base, rho: Scalar = 0.05, alpha: Scalar = 0.1, beta: Scalar = 0.01, **options: Any
    ) -> None:
        super().__init__(base, radius=Fixed(rho), combine=curvature(alpha, beta), **options)


KIN: tuple[type[SharpnessAware], ...] = (LookSAM, VaSSO, WSAM, EMASAM, AESAM, CRSAM)
