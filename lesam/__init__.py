"""Sharpness-aware training for PyTorch.

``import lesam`` needs torch and nothing else; the measures (``lesam.flatness``), the integrations
(``lesam.integrations``) and the experiments (``lesam.lab``) are imported by name and come with extras.

The optimizers are imported when one of them is first asked for: the command line answers ``--help`` without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .optim import *  # noqa: F403 -- the optimizers are the package's face
    from .optim import __all__ as _optim

    __all__ = [*_optim, "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":  # Python's own questions about a module import nothing
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    optim = importlib.import_module(f"{__name__}.optim")
    if name == "optim":
        return optim
    if name == "__all__":
        return [*optim.__all__, "__version__"]
    if name not in optim.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(optim, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__"), "optim"})
