"""The published methods, each a name for a choice of parts."""

from __future__ import annotations

from typing import Any

import torch  # noqa: F401 -- for the examples

from ._bases import Base
from ._combiners import excess, gap, renormalized
from ._directions import Noise, TopEigenvector
from ._metrics import Adaptive, DiagonalFisher
from ._one_pass import Momentum, Stale
from ._radii import EstimatedBudget, Fixed, LossBudget
from ._savers import RandomSubset, TopSamples
from ._sharpness_aware import SharpnessAware
from .kin import KIN
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


class LESAM(SharpnessAware):
    r"""Loss-Equated SAM: fix the rise in loss, not the radius.

    .. math:: \rho_t = \min\!\left(\frac{\sigma_t}{\lVert g\rVert + \varrho},\ \rho_{max}\right),
              \qquad \epsilon = \rho_t\, \frac{g}{\lVert g\rVert}

    To first order the loss then rises by ``sigma`` at every step, whatever the gradient's length, and what the second
    gradient adds is curvature. The radius depends on the scale of the loss: gradients must be those of the mean loss,
    unscaled and unclipped.

    Args:
        base: The optimizer to wrap.
        sigma: The loss budget. The paper anneals it to zero at the end: ``lesam.schedules.cosine_tail``.
        rho_max: Cap on the radius, or None.
        varrho: Keeps the division finite.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> w = torch.tensor([2.0], requires_grad=True)
        >>> opt = LESAM(torch.optim.SGD([w], lr=0.1), sigma=0.3, rho_max=None)
        >>> def closure():
        ...     opt.zero_grad()
        ...     loss = (w * w).sum() / 2
        ...     loss.backward()
        ...     return loss
        >>> loss = opt.step(closure)
        >>> opt.last.rho.item(), (opt.last.rho * opt.last.slope).item()  # sigma / |g|, and sigma itself
        (0.15000000596046448, 0.30000001192092896)

    References:
        Wang, Liu, Xie, Gao: *Fix the Loss, Not the Radius: Rethinking the Adversarial Perturbation of Sharpness-Aware
        Minimization*, ICML 2026.
    """

    def __init__(
        self,
        base: Base,
        sigma: Scalar = 0.35,
        rho_max: Scalar | None = 0.4,
        varrho: float = 1e-12,
        **options: Any,
    ) -> None:
        super().__init__(base, radius=LossBudget(sigma, rho_max, varrho), **options)


class LESAMPlus(SharpnessAware):
    r"""LE-SAM+: LE-SAM that weighs the rise in loss once more.

    The rise :math:`L(w + \epsilon) - L(w)`, a proxy of curvature, has the weight :math:`\alpha`. Descends with
    :math:`(1 + \alpha)\hat g - \alpha g` (``form="paper"``) or :math:`\hat g - \alpha g` (``form="reference"``, the
    authors' code).

    Args:
        base: The optimizer to wrap.
        sigma: The loss budget.
        alpha: Weight of the curvature proxy; 0 is LE-SAM.
        rho_max: Cap on the radius, or None.
        varrho: Keeps the division finite.
        form: Which gradient.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> opt = LESAMPlus(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1), alpha=0.5)

    References:
        Section 6.1 of the paper of :class:`LESAM`.
    """

    def __init__(
        self,
        base: Base,
        sigma: Scalar = 0.15,
        alpha: Scalar = 0.5,
        rho_max: Scalar | None = 0.4,
        varrho: float = 1e-12,
        form: str = "paper",
        **options: Any,
    ) -> None:
        super().__init__(base, radius=LossBudget(sigma, rho_max, varrho), combine=excess(alpha, form), **options)


class OnePassLESAM(SharpnessAware):
    r"""One-pass LE-SAM: the loss budget along an average of the last perturbed gradients, at the price of the base.

    .. math:: \rho_t = \min\!\left(\frac{\sigma_t}{\lVert d_{t-1}\rVert + \varrho},\ \rho_{max}\right), \qquad
              \epsilon = \rho_t\, \frac{d_{t-1}}{\lVert d_{t-1}\rVert}, \qquad
              d_t = (1 - \theta)\, d_{t-1} + \theta\, \hat g_t

    The gradient at :math:`w` is never computed: the average stands for it, its length for the slope. The first step
    perturbs nothing. As in LE-SAM, gradients must be those of the mean loss, unscaled and unclipped.

    Args:
        base: The optimizer to wrap.
        sigma: The loss budget.
        theta: Weight of the newest gradient in the average; 1 climbs along the last step's gradient alone.
        rho_max: Cap on the radius, or None.
        varrho: Keeps the division finite.
        **options: Those of :class:`SharpnessAware`.

    Example:
        >>> opt = OnePassLESAM(torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1), sigma=0.2)
        >>> opt.passes
        1
    """

    title = "One-pass LE-SAM"

    def __init__(
        self,
        base: Base,
        sigma: Scalar = 0.2,
        theta: Scalar = 0.5,
        rho_max: Scalar | None = 0.4,
        varrho: float = 1e-12,
        **options: Any,
    ) -> None:
        super().__init__(base, direction=Stale(theta), radius=EstimatedBudget(sigma, rho_max, varrho), **options)


PUBLISHED = (SAM, ASAM, FisherSAM, EigenSAM, FriendlySAM, GSAM, SSAM, ESAM, MSAM, S2SAM, LESAM, LESAMPlus)
METHODS: dict[str, type[SharpnessAware]] = {
    method.__name__.lower(): method for method in (*PUBLISHED, *KIN, OnePassLESAM)
}
"""The published methods by the name that the command line and configurations use: ``"lesam"`` is :class:`LESAM`."""
