"""The optimizers: one loop, its parts, and the published methods. Depends on torch alone."""

from . import schedules
from ._averages import Averaged, Blended, Drift
from ._combiners import Combiner, excess, gap, perturbed, renormalized, weighted
from ._directions import Direction, Gradient, Noise, TopEigenvector
from ._gates import Gate, LargeGradients
from ._last import Last
from ._metrics import Adaptive, DiagonalFisher, Euclidean, Metric
from ._mirror import curvature
from ._norms import norm_parameters
from ._one_pass import Momentum, Stale
from ._radii import EstimatedBudget, Fixed, LossBudget, Radius
from ._reuse import orthogonal
from ._savers import BatchPart, RandomSubset, TopSamples
from ._sharpness_aware import SharpnessAware
from .kin import AESAM, CRSAM, EMASAM, WSAM, LookSAM, VaSSO
from .loss_equated import LESAM, LESAMPlus, OnePassLESAM, PartialLESAM
from .methods import (
    ASAM,
    ESAM,
    GSAM,
    METHODS,
    MSAM,
    S2SAM,
    SAM,
    SSAM,
    EigenSAM,
    FisherSAM,
    FriendlySAM,
)

__all__ = [
    "AESAM",
    "ASAM",
    "CRSAM",
    "EMASAM",
    "ESAM",
    "GSAM",
    "LESAM",
    "METHODS",
    "MSAM",
    "S2SAM",
    "SAM",
    "SSAM",
    "WSAM",
    "Adaptive",
    "Averaged",
    "BatchPart",
    "Blended",
    "Combiner",
    "DiagonalFisher",
    "Direction",
    "Drift",
    "EigenSAM",
    "EstimatedBudget",
    "Euclidean",
    "FisherSAM",
    "Fixed",
    "FriendlySAM",
    "Gate",
    "Gradient",
    "LESAMPlus",
    "LargeGradients",
    "Last",
    "LookSAM",
    "LossBudget",
    "Metric",
    "Momentum",
    "Noise",
    "OnePassLESAM",
    "PartialLESAM",
    "Radius",
    "RandomSubset",
    "SharpnessAware",
    "Stale",
    "TopEigenvector",
    "TopSamples",
    "VaSSO",
    "curvature",
    "excess",
    "gap",
    "norm_parameters",
    "orthogonal",
    "perturbed",
    "renormalized",
    "schedules",
    "weighted",
]
