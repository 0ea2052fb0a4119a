"""The parameters of norm layers, for ``perturb=``."""

from __future__ import annotations

from torch import nn

LAYERS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.GroupNorm, nn.LayerNorm, nn.RMSNorm),
)


def norm_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Scales and shifts of the norm layers of a model: what SAM-ON climbs, and nothing else.

    torch's norm layers, what is derived from them, and layers of other libraries that call themselves norms and have
    vectors for parameters (``LlamaRMSNorm``).

    Args:
        model: Where to look.

    Raises:
        ValueError: There are none.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        >>> [tuple(p.shape) for p in norm_parameters(model)]
        [(8,), (8,)]

    References:
        Müller, Vlaar, Rolnick, Hein: *Normalization Layers Are All That Sharpness-Aware Minimization Needs*, NeurIPS
        2023.
    """
    own = ([*layer.parameters(recurse=False)] for layer in model.modules() if _normalises(layer))
    found = list(dict.fromkeys(parameter for parameters in own for parameter in parameters))
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no norm layer with parameters; leave perturb= out to climb them all"
        )
    return found


def _normalises(layer: nn.Module) -> bool:
    named = "norm" in type(layer).__name__.lower() and all(p.dim() == 1 for p in layer.parameters(recurse=False))
    return named or isinstance(layer, LAYERS)
