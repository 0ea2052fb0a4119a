"""A step of LE-SAM in plain torch, which knows nothing of the package: what every set-up must come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


def step(base: Any, loss: Callable[[], Tensor], sigma: float) -> float:
    """The base's own step with the gradient at ``w + sigma g / |g|^2``; returns the clean loss."""
    clean = climb([p for group in base.param_groups for p in group["params"] if p.requires_grad], loss, sigma)
    base.step()
    return clean


def climb(trained: list[Tensor], loss: Callable[[], Tensor], sigma: float) -> float:
    """Leaves the gradient at ``w + sigma g / |g|^2`` in ``.grad`` and the weights as they were."""
    kept = [p.detach().clone() for p in trained]
    clean = _gradients(trained, loss)
    squared = sum(float(p.grad.double().square().sum()) for p in trained if p.grad is not None)
    with torch.no_grad():
        for p in trained:
            if p.grad is not None:
                p.add_(p.grad, alpha=sigma / squared)
    _gradients(trained, loss)
    with torch.no_grad():
        for p, before in zip(trained, kept, strict=True):
            p.copy_(before)
    return clean


def _gradients(parameters: Iterable[Tensor], loss: Callable[[], Tensor]) -> float:
    for p in parameters:
        p.grad = None
    value = loss()
    value.backward()
    return float(value.detach())


def trained(model: torch.nn.Module) -> list[Tensor]:
    """Copies of what is trained."""
    return [p.detach().clone() for p in model.parameters() if p.requires_grad]


def assert_same_update(model: torch.nn.Module, reference: torch.nn.Module, start: list[Tensor], rel: float) -> None:
    """How far training moved the weights, not only where they are: most of a weight is where it started."""
    far, apart = 0.0, 0.0
    for a, b, before in zip(trained(model), trained(reference), start, strict=True):
        far += float((b - before).double().square().sum())
        apart += float((a - b).double().square().sum())
    assert far > 0
    assert apart**0.5 <= rel * far**0.5, f"{apart**0.5 / far**0.5:.2e} of the update"
