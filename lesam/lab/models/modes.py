"""A network in eval mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode, and then every module in the mode it had: a layer frozen in eval mode stays frozen.

    Example:
        >>> model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1).eval())
        >>> with evaluating(model):
        ...     model.training
        False
        >>> model.training, model[1].training
        (True, False)
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
