"""Measures of how flat a minimum is: Hessian spectrum, trace and density, low-pass filter, loss landscape.

Needs torch and numpy. Nothing here changes the model it looks at, and every result carries the settings it was
measured with: eigenvalues measured on other samples, or in another mode, are not comparable.
"""

from lesam.flatness._basis import Storage
from lesam.flatness._density import SpectralDensity, spectral_density
from lesam.flatness._eigenvalues import Eigenvalues, top_eigenvalues
from lesam.flatness._landscape import Landscape, landscape
from lesam.flatness._layers import LayerCurvature, by_layer
from lesam.flatness._lowpass import LowPass, low_pass_filter
from lesam.flatness._operator import HessianOperator, SymmetricOperator
from lesam.flatness._results import Measurement, Progress, cached
from lesam.flatness._trace import TraceEstimate, trace

__all__ = [
    "Eigenvalues",
    "HessianOperator",
    "Landscape",
    "LayerCurvature",
    "LowPass",
    "Measurement",
    "Progress",
    "SpectralDensity",
    "Storage",
    "SymmetricOperator",
    "TraceEstimate",
    "by_layer",
    "cached",
    "landscape",
    "low_pass_filter",
    "spectral_density",
    "top_eigenvalues",
    "trace",
]
