"""Two batches mixed as a whole (MixUp) and by a box (CutMix), with one share for both.

References:
    Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018;
    Yun et al., CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features, ICCV 2019;
    Du et al., GLMC, CVPR 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """The share ``lam`` of the first batch, and the box that comes from the second one.

    Example:
        >>> mixture = Mixture(lam=0.25, rows=(0, 1), columns=(1, 3))
        >>> mixture.whole(torch.ones(1), torch.zeros(1))
        tensor([0.2500])
        >>> mixture.boxed(torch.ones(1, 1, 2, 3), torch.zeros(1, 1, 2, 3))[0, 0]
        tensor([[1., 0., 0.],
                [1., 1., 1.]])
    """

    lam: float
    rows: tuple[int, int]
    columns: tuple[int, int]

    @classmethod
    def draw(cls, height: int, width: int, source: torch.Generator) -> Mixture:
        """Draw ``lam`` from Beta(1, 1), which is the uniform distribution, and a box centred on any pixel."""
        lam = float(torch.rand((), generator=source, dtype=torch.float64))
        centres = [int(torch.randint(side, (), generator=source)) for side in (height, width)]
        rows, columns = (box_side(side, centre, lam) for side, centre in zip((height, width), centres, strict=True))
        return cls(lam=lam, rows=rows, columns=columns)

    def whole(self, first: Tensor, second: Tensor) -> Tensor:
        """``lam * first + (1 - lam) * second``: images (MixUp), or targets."""
        return self.lam * first + (1 - self.lam) * second

    def boxed(self, first: Tensor, second: Tensor) -> Tensor:
        """The first images with the box of the second ones in them (CutMix)."""
        (top, bottom), (left, right) = self.rows, self.columns
        mixed = first.clone()
        mixed[:, :, top:bottom, left:right] = second[:, :, top:bottom, left:right]
        return mixed


def box_side(side: int, centre: int, lam: float) -> tuple[int, int]:
    """First pixel of the box along one side of an image, and the one after its last.

    ``ceil(side * sqrt(1 - lam))`` pixels, of which ``centre`` has one half on each hand (an odd one is lost, as in
    CutMix), clipped to the image.

    >>> box_side(32, centre=16, lam=0.75), box_side(32, centre=2, lam=0.75)
    ((8, 24), (0, 10))
    """
    half = math.ceil(side * math.sqrt(1 - lam)) // 2
    return max(centre - half, 0), min(centre + half, side)
