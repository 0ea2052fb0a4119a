"""Sharpness-aware training for PyTorch.

``import lesam`` needs torch and nothing else; the measures (``lesam.flatness``), the integrations
(``lesam.integrations``) and the experiments (``lesam.lab``) are imported by name and come with extras.
"""

from .optim import *  # noqa: F403 -- the optimizers are the package's face
from .optim import __all__ as _optim

__version__ = "0.1.0.dev0"
__all__ = [*_optim, "__version__"]
