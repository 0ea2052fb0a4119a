"""Curvature layer by layer: the largest eigenvalues and the trace of each layer's own block of the Hessian."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from lesam.flatness._basis import Storage
from lesam.flatness._eigenvalues import Eigenvalues, top_eigenvalues
from lesam.flatness._objective import LossFunction, Selection, select_parameters
from lesam.flatness._operator import HessianOperator
from lesam.flatness._results import Measurement, Progress, Setting
from lesam.flatness._trace import TraceEstimate, trace
from lesam.flatness._untouched import Mode

ROOT = "(model)"
"""The layer of parameters that belong to no sub-module."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerCurvature(Measurement):
    """Eigenvalues and trace of the diagonal blocks of the Hessian, one entry for each layer in the model's order.

    Attributes:
        names: Modules that hold parameters themselves.
        sizes: Parameters of each.
        eigenvalues: Its algebraically largest eigenvalues, descending; as many as it has parameters where it is small.
        converged: Whether all of them have converged.
        traces: Estimates of the blocks' traces, whose sum estimates the trace of the whole Hessian.
        stderrs: Their standard errors.
    """

    names: list[str]
    sizes: list[int]
    eigenvalues: list[list[float]]
    converged: list[bool]
    traces: list[float]
    stderrs: list[float]

    def lines(self) -> list[str]:
        width = max(map(len, self.names))
        rows = [
            f"  {name:<{width}}  {size:>9}  largest {values[0]:>10.4g}{'' if ok else ' (not converged)'}"
            f"  trace {estimate:.4g} +- {error:.2g}"
            for name, size, values, ok, estimate, error in zip(
                self.names, self.sizes, self.eigenvalues, self.converged, self.traces, self.stderrs, strict=True
            )
        ]
        return [f"Hessian blocks of {len(self.names)} layers: parameters, largest eigenvalue, trace", *rows]


def by_layer(
    model: nn.Module,
    loss_fn: LossFunction,
    data: Iterable[Any],
    *,
    k: int = 3,
    samples: int = 20,
    params: Selection = None,
    mode: Mode = "eval",
    batch_size: int | None = None,
    tolerance: float = 1e-3,
    seed: int = 0,
    storage: Storage = "device",
    progress: Progress | None = None,
) -> LayerCurvature:
    r"""Measure the curvature of the loss in the parameters of one layer at a time, all others held still.

    For layer :math:`l` with weights :math:`w_l` that is the block :math:`H_{ll} = \partial^2 L / \partial w_l^2` on the
    diagonal of the Hessian. Its largest eigenvalue is a lower bound of that of the whole, its trace a part of the
    whole trace. Layers are measured one after the other, and what one needed is given back before the next: memory
    does not grow with their number.

    Args:
        model: Left as it was.
        loss_fn: `loss_fn(output, target)`, the mean over a batch.
        data: Iterable of `(input, target)`, the same in each pass.
        k: Eigenvalues of each layer; fewer of layers that have fewer parameters.
        samples: Products for the trace of each layer; at least 2.
        params: Which parameters to measure; default all that require a gradient.
        mode: As in `HessianOperator`.
        batch_size: Splits larger batches.
        tolerance: Relative residual at which an eigenvalue counts as found.
        seed: Of starting vectors and signs.
        storage: Where Lanczos keeps its basis, as in `top_eigenvalues`.
        progress: Called as `progress(layers, total)`.

    Example:
        >>> import torch
        >>> from lesam.flatness import by_layer
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False), torch.nn.Identity())
        >>> found = by_layer(model, torch.nn.functional.mse_loss, [(x, x[:, :1])], k=2)      # 2 / n * x'x = diag(1, 4)
        >>> found.names, [round(value, 4) for value in found.eigenvalues[0]], found.traces
        (['0'], [4.0, 1.0], [5.0])

    References:
        Yao, Gholami, Keutzer, Mahoney, "PyHessian: neural networks through the lens of the Hessian", 2020.
    """
    if k < 1 or samples < 2:
        raise ValueError(f"k must be at least 1 and samples 2, got {k} and {samples}")
    batches = list(data) if isinstance(data, Iterator) else data  # every layer reads them again
    layers = _layers(model, params)
    found: list[tuple[int, Eigenvalues, TraceEstimate]] = []
    for number, names in enumerate(layers.values()):
        operator = HessianOperator(
            model, loss_fn, batches, params=names, mode=mode, batch_size=batch_size, check=number == 0
        )
        values = top_eigenvalues(operator, min(k, operator.size), tolerance=tolerance, seed=seed, storage=storage)
        found.append((operator.size, values, trace(operator, samples, seed=seed)))
        if progress is not None:
            progress(number + 1, len(layers))
    options: dict[str, Setting] = {"k": k, "products": samples, "tolerance": tolerance, "seed": seed}
    whole: dict[str, Setting] = {"parameters": sum(size for size, _, _ in found), "layers": len(layers)}
    shared = {name: value for name, value in found[0][2].settings.items() if name not in ("tensors", "method")}
    return LayerCurvature(
        settings=shared | options | whole,
        names=list(layers),
        sizes=[size for size, _, _ in found],
        eigenvalues=[values.values.tolist() for _, values, _ in found],
        converged=[bool(values.converged.all()) for _, values, _ in found],
        traces=[estimate.estimate for _, _, estimate in found],
        stderrs=[estimate.stderr for _, _, estimate in found],
    )


def _layers(model: nn.Module, params: Selection) -> dict[str, list[str]]:
    """Names of the parameters that each module holds itself, in the model's order."""
    layers: dict[str, list[str]] = {}
    for name in select_parameters(model, params):
        layers.setdefault(name.rpartition(".")[0] or ROOT, []).append(name)
    return layers
