"""LE-SAM and its relatives: the rise in loss is fixed, and the radius follows from it."""

from __future__ import annotations

from typing import Any

import torch  # noqa: F401 -- for the examples

from ._averages import Blended
from ._bases import Base
from ._combiners import excess
from ._directions import Gradient
from ._one_pass import Stale
from ._radii import EstimatedBudget, LossBudget
from ._savers import BatchPart
from ._sharpness_aware import SharpnessAware
from .schedules import Scalar


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
        theta: Scalar = 0.2,
        rho_max: Scalar | None = 0.4,
        varrho: float = 1e-12,
        **options: Any,
    ) -> None:
        super().__init__(base, direction=Stale(theta), radius=EstimatedBudget(sigma, rho_max, varrho), **options)


class PartialLESAM(SharpnessAware):
    r"""LE-SAM whose first pass is on a part of the batch: most of its gain for little more than one pass.

    .. math:: \rho_t = \min\!\left(\frac{\sigma_t}{\lVert u\rVert + \varrho},\ \rho_{max}\right), \qquad
              \epsilon = \rho_t\, \frac{u}{\lVert u\rVert}, \qquad
              u = \min(1, \kappa p)\, g_p + (1 - p)\, d_{t-1}, \qquad
              d_t = (1 - \theta)\, d_{t-1} + \theta\, \hat g_t

    The first pass gives :math:`g_p`, the gradient of a share :math:`p` of the batch; an average of the gradients that
    earlier steps descended with stands for the rest, and the length of the two for the slope. The second pass is on
    the whole batch, so a step costs :math:`1 + p` passes, and about :math:`1 + 2p/3` where ``perturb=`` has few
    tensors and the first backward computes no other gradients, ``loss.backward(inputs=opt.perturbable)``. There is no
    loss of the whole batch at :math:`w`: a step returns that at :math:`w + \epsilon`. As in LE-SAM, gradients must be
    those of mean losses, unscaled and unclipped.

    Args:
        base: The optimizer to wrap.
        sigma: The loss budget.
        share: Of the batch, for the first pass: what :meth:`few` counts by. Each step says what share its own first
            pass is on; one that does not is LE-SAM's, at two passes.
        theta: Weight of the newest gradient in the average, where there is one.
        weight: :math:`\kappa`, weight of the part in multiples of its share. None climbs along the part alone, without
            an average: :math:`u = p\, g_p`, as if no other sample's loss rose. The radius is about :math:`1 / p` times
            LE-SAM's then, so give a larger cap or none.
        rho_max: Cap on the radius, or None.
        varrho: Keeps the division finite.
        **options: Those of :class:`SharpnessAware`; BatchNorm statistics follow the second pass, which sees the batch.

    Example:
        >>> model = torch.nn.Linear(3, 2)
        >>> x, y = torch.randn(40, 3), torch.randint(0, 2, (40,))
        >>> opt = PartialLESAM(torch.optim.SGD(model.parameters(), lr=0.1), sigma=0.2, share=0.1)
        >>> def passing(x, y):
        ...     def closure():
        ...         opt.zero_grad()
        ...         loss = torch.nn.functional.cross_entropy(model(x), y)
        ...         loss.backward()
        ...         return loss
        ...     return closure
        >>> few = opt.few(len(x))
        >>> loss = opt.step(passing(x, y), ascent=passing(x[:few], y[:few]), share=few / len(x))
        >>> few, round(opt.last.cost.item(), 2)
        (4, 1.1)
    """

    title = "Partial LE-SAM"

    def __init__(
        self,
        base: Base,
        sigma: Scalar = 0.35,
        share: float = 0.1,
        theta: Scalar = 0.2,
        weight: Scalar | None = 3.0,
        rho_max: Scalar | None = 0.4,
        varrho: float = 1e-12,
        **options: Any,
    ) -> None:
        average = Blended(theta, 1.0 if weight is None else weight)
        direction = Gradient() if weight is None else average
        radius = LossBudget(sigma, rho_max, varrho)
        super().__init__(base, direction=direction, radius=radius, part=BatchPart(share), **options)

    def few(self, batch: int) -> int:
        """Samples of the first pass, for a batch of that many."""
        part: BatchPart = self.parts.part  # type: ignore[assignment]
        return part.count(batch)
