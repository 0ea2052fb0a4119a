"""The published methods, each a name for a choice of parts."""

from __future__ import annotations

from typing import Any

import torch  # noqa: F401 -- for the examples

from ._bases import Base
from ._combiners import gap, renormalized
from ._directions import Noise, TopEigenvector
from ._metrics import Adaptive, DiagonalFisher
from ._one_pass import Momentum, Stale
from ._radii import Fixed
from ._savers import RandomSubset, TopSamples
from ._sharpness_aware import SharpnessAware
from .kin import KIN
from .loss_equated import LESAM, LESAMPlus, OnePassLESAM, PartialLESAM
from .schedules import Scalar


class SAM(SharpnessAware):
    r"""Sharpness-Aware Minimization: a fixed distance along the gradient.

    Args:
        base: The optimizer to wrap.
        rho: The radius, of :math:`\epsilon = \rho\, g / \lVert g\rVert`.
        **options: Those of :class:`SharpnessAware`, as for all methods.

    Example:
        >>> opt = SAM(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1), rho=0.05)

    References:
        Foret, Kleiner, Mobahi, Neyshabur: *Sharpness-Aware Minimization for Efficiently Improving Generalization*,
        ICLR 2021.
    """

    def __init__(self, base: Base, rho: Scalar = 0.05, **options: Any) -> None:
        super().__init__(base, radius=Fixed(rho), **options)


class ASAM(SharpnessAware):
    r"""Adaptive SAM: a fixed distance, measured relative to the size of each weight.

    Climbs :math:`\epsilon = \rho\, T^2 g / \lVert T g\rVert` with :math:`T = |w| + \eta` on weights.

    Args:
        base: The optimizer to wrap.
        rho: The radius, in the adaptive geometry; about ten times SAM's.
        eta: Keeps small weights movable.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> opt = ASAM(torch.optim.SGD([torch.ones(2, 2, requires_grad=True)], lr=0.1), rho=0.5)

    References:
        Kwon, Kim, Park, Choi: *ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural
        Networks*, ICML 2021.
    """

    def __init__(self, base: Base, rho: Scalar = 0.5, eta: float = 0.01, **options: Any) -> None:
        super().__init__(base, metric=Adaptive(eta), radius=Fixed(rho), **options)


class FisherSAM(SharpnessAware):
    r"""Fisher SAM: a fixed distance, measured by the Fisher information.

    Climbs :math:`\epsilon = \rho\, F^{-1} g / \sqrt{g^\top F^{-1} g}` with :math:`F^{-1} = 1 / (1 + \eta g^2)`.

    Args:
        base: The optimizer to wrap.
        rho: The radius, in the Fisher geometry.
        eta: Weight of the Fisher information against the identity; 0 is SAM.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> opt = FisherSAM(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1))

    References:
        Kim, Li, Hu, Hospedales: *Fisher SAM: Information Geometry and Sharpness Aware Minimisation*, ICML 2022.
    """

    def __init__(self, base: Base, rho: Scalar = 0.1, eta: float = 1.0, **options: Any) -> None:
        super().__init__(base, metric=DiagonalFisher(eta), radius=Fixed(rho), **options)


class EigenSAM(SharpnessAware):
    r"""Eigen-SAM: the gradient, bent towards the Hessian's top eigenvector.

    Args:
        base: The optimizer to wrap.
        rho: The radius.
        alpha: Weight of the eigenvector's part orthogonal to the gradient; 0 is SAM.
        every: Steps between refreshes of the eigenvector.
        iterations: Power iterations in a refresh, two closure calls each.
        form: ``"official"``, or ``"top"`` for :math:`\rho\,\mathrm{sign}\langle g, v\rangle\, v`.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> opt = EigenSAM(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1), every=10)

    References:
        Luo, Truong, Pham, Harandi, Phung, Le: *Explicit Eigenvalue Regularization Improves Sharpness-Aware
        Minimization*, NeurIPS 2024.
    """

    def __init__(
        self,
        base: Base,
        rho: Scalar = 0.1,
        alpha: Scalar = 0.2,
        every: int = 100,
        iterations: int = 5,
        form: str = "official",
        **options: Any,
    ) -> None:
        direction = TopEigenvector(alpha, every, iterations, form)
        super().__init__(base, direction=direction, radius=Fixed(rho), **options)


class FriendlySAM(SharpnessAware):
    r"""Friendly-SAM: climb what of the gradient is not in its running average.

    Args:
        base: The optimizer to wrap.
        rho: The radius.
        weight: How much of the average :math:`m` is taken out, in :math:`d = g - \lambda m`; 0 is SAM.
        decay: Of the average.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> opt = FriendlySAM(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1))

    References:
        Li, Zhou, He, Cheng, Huang: *Friendly Sharpness-Aware Minimization*, CVPR 2024.
    """

    def __init__(
        self, base: Base, rho: Scalar = 0.2, weight: Scalar = 1.0, decay: Scalar = 0.9, **options: Any
    ) -> None:
        super().__init__(base, direction=Noise(weight, decay), radius=Fixed(rho), **options)


class GSAM(SharpnessAware):
    r"""GSAM: also descend the surrogate gap.

    Descends with :math:`\hat g - \alpha\, g_\perp`, the part of :math:`g` orthogonal to :math:`\hat g`.
    For the paper's radius that follows the learning rate, give ``rho=lesam.schedules.proportional_to_lr(base, ...)``.

    Args:
        base: The optimizer to wrap.
        rho: The radius.
        alpha: Weight of the part of ``g`` orthogonal to ``g_hat``; 0 is SAM.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> opt = GSAM(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1), alpha=0.1)

    References:
        Zhuang, Gong, Yuan, Cui, Adam, Dvornek, Tatikonda, Duncan, Liu: *Surrogate Gap Minimization Improves
        Sharpness-Aware Training*, ICLR 2022.
    """

    def __init__(self, base: Base, rho: Scalar = 0.05, alpha: Scalar = 0.4, **options: Any) -> None:
        super().__init__(base, radius=Fixed(rho), combine=gap(alpha), **options)


class SSAM(SharpnessAware):
    r"""Stable SAM: the perturbed gradient at the length of the first one.

    Descends with :math:`\hat g\,\lVert g\rVert / \lVert\hat g\rVert`.
    Not to be taken for Sparse SAM, which has the same acronym.

    Args:
        base: The optimizer to wrap.
        rho: The radius.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> opt = SSAM(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1))

    References:
        Tan, Zhang, Liu, Wang, Hao: *Stabilizing Sharpness-aware Minimization through A Simple Renormalization
        Strategy*, JMLR 2025.
    """

    def __init__(self, base: Base, rho: Scalar = 0.05, **options: Any) -> None:
        super().__init__(base, radius=Fixed(rho), combine=renormalized, **options)


class ESAM(SharpnessAware):
    r"""Efficient SAM: climb on a random subset of tensors, descend on the samples whose loss rose most.

    Args:
        base: The optimizer to wrap.
        rho: The radius; the climb is :math:`\rho / \beta` on the chosen tensors.
        beta: Probability of each tensor to be climbed.
        gamma: Share of the samples kept for the second gradient; below 1, call ``step(sample_losses=fn)``.
        seed: Of the random subsets.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> opt = ESAM(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1), beta=0.6, gamma=0.5)

    References:
        Du, Yan, Feng, Zhou, Zhen, Goh, Tan: *Efficient Sharpness-aware Minimization for Improved Training of Neural
        Networks*, ICLR 2022.
    """

    def __init__(
        self, base: Base, rho: Scalar = 0.05, beta: float = 0.6, gamma: float = 0.5, seed: int = 0, **options: Any
    ) -> None:
        super().__init__(base, radius=Fixed(rho), subset=RandomSubset(beta, seed), samples=TopSamples(gamma), **options)


class MSAM(SharpnessAware):
    r"""Momentum-SAM: one pass, a fixed distance against the base's momentum.

    Args:
        base: An optimizer with momentum: SGD with ``momentum > 0``, or an Adam.
        rho: The radius; far larger than SAM's. The pass is at :math:`w - \rho\, v / \lVert v\rVert`.
        momentum: The name of the buffer in the base's state, where it is neither ``momentum_buffer`` nor ``exp_avg``.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> opt = MSAM(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1, momentum=0.9))

    References:
        Becker, Altrock, Risse: *Momentum-SAM: Sharpness Aware Minimization without Computational Overhead*, 2024.
    """

    def __init__(self, base: Base, rho: Scalar = 3.0, momentum: str | None = None, **options: Any) -> None:
        super().__init__(base, direction=Momentum(momentum), radius=Fixed(rho), **options)


class S2SAM(SharpnessAware):
    r"""Single-step SAM: one pass, a fixed distance along the last step's gradient.

    Args:
        base: The optimizer to wrap.
        rho: The radius. The pass is at :math:`w + \rho\, \hat g_{t-1} / \lVert \hat g_{t-1}\rVert`.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> opt = S2SAM(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1))

    References:
        Ji, Li, Fu, Afghah, Guo, Yuan, Ma: *A Single-Step, Sharpness-Aware Minimization is All You Need to Achieve
        Efficient and Accurate Sparse Training*, NeurIPS 2024.
    """

    def __init__(self, base: Base, rho: Scalar = 0.05, **options: Any) -> None:
        super().__init__(base, direction=Stale(), radius=Fixed(rho), **options)


PUBLISHED = (SAM, ASAM, FisherSAM, EigenSAM, FriendlySAM, GSAM, SSAM, ESAM, MSAM, S2SAM, LESAM, LESAMPlus)
METHODS: dict[str, type[SharpnessAware]] = {
    method.__name__.lower(): method for method in (*PUBLISHED, *KIN, OnePassLESAM, PartialLESAM)
}
"""The published methods by the name that the command line and configurations use: ``"lesam"`` is :class:`LESAM`."""
