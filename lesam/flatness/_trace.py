"""The trace of the Hessian from random products, with a standard error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lesam.flatness._operator import SymmetricOperator
from lesam.flatness._random import rademacher
from lesam.flatness._results import Measurement, Progress

# Vectors multiplied together: they share each batch's gradient graph, at the price of that many vectors of memory.
_BLOCK = 8


@dataclass(frozen=True, eq=False, kw_only=True)
class TraceEstimate(Measurement):
    """An unbiased estimate of the trace.

    Attributes:
        estimate: The estimate.
        stderr: Its standard error (0 where the method is exact).
        draws: The random terms that `stderr` comes from; `estimate` is their mean plus `exact`.
        exact: What was computed without chance (Hutch++'s low-rank part; 0 for Hutchinson).
    """

    estimate: float
    stderr: float
    draws: Tensor
    exact: float

    def lines(self) -> list[str]:
        return [
            f"Hessian trace {self.estimate:.6g} +- {self.stderr:.2g} "
            f"({self.settings['method']}, {self.settings['products']} products)"
        ]


def trace(
    operator: SymmetricOperator,
    samples: int = 100,
    method: Literal["hutchinson", "hutch++"] = "hutchinson",
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> TraceEstimate:
    r"""Estimate `tr(H)` with `samples` Hessian products.

    Hutchinson averages :math:`z^\top H z` over vectors of random signs, with variance
    :math:`2 (\|H\|_F^2 - \sum_i H_{ii}^2)` each. Hutch++ spends a third of the products on a basis `Q` of `H S`,
    takes :math:`\mathrm{tr}(Q^\top H Q)` exactly and applies Hutchinson to what is left; it pays when a few
    eigenvalues carry the trace, as in trained networks, and holds `samples / 3` vectors of the model's size.
    There is no early stop: a rule that watches the running mean stops by luck.

    Args:
        operator: The Hessian.
        samples: Products to spend; at least 2, at least 6 for "hutch++".
        method: "hutchinson" or "hutch++".
        seed: Of the random signs. Equal seeds and sizes give equal vectors, so differences between checkpoints
            are less noisy than the values.
        progress: Called as `progress(products, samples)`.

    Example:
        >>> import torch
        >>> from lesam.flatness import HessianOperator, trace
        >>> x = torch.eye(3)
        >>> operator = HessianOperator(torch.nn.Linear(3, 1, bias=False), torch.nn.functional.mse_loss, [(x, x[:, :1])])
        >>> print(trace(operator, samples=10).lines()[0])      # a diagonal Hessian: no variance
        Hessian trace 2 +- 0 (hutchinson, 10 products)

    References:
        Hutchinson, "A stochastic estimator of the trace of the influence matrix", 1990.
        Meyer, Musco, Musco, Woodruff, "Hutch++: optimal stochastic trace estimation", SOSA 2021.
    """
    least = {"hutchinson": 2, "hutch++": 6}
    if method not in least:
        raise ValueError(f"method must be one of {sorted(least)}, got {method!r}")
    if samples < least[method]:
        raise ValueError(f"samples must be at least {least[method]} for {method!r}, got {samples}")
    counter = _Counter(operator, samples, progress)
    if method == "hutchinson":
        exact, draws = 0.0, _forms(counter, seed, range(samples), None)
    else:
        third = min(samples // 3, operator.size)
        basis = torch.linalg.qr(counter.products(_signs(operator, seed, range(third))).T).Q.T
        exact = float((basis.double() * counter.products(basis).double()).sum())
        # A basis of the whole space leaves nothing to chance.
        rest = range(third, third + (samples - 2 * third if third < operator.size else 0))
        draws = _forms(counter, seed, rest, basis)
    spread = float(draws.std()) / math.sqrt(len(draws)) if len(draws) else 0.0
    return TraceEstimate(
        settings=operator.settings | {"method": method, "products": counter.done, "seed": seed},
        estimate=exact + (float(draws.mean()) if len(draws) else 0.0),
        stderr=spread,
        draws=draws,
        exact=exact,
    )


class _Counter:
    """Products in blocks, with progress."""

    def __init__(self, operator: SymmetricOperator, total: int, progress: Progress | None) -> None:
        self.operator, self._total, self._progress = operator, total, progress
        self.done = 0

    def products(self, rows: Tensor) -> Tensor:
        out = torch.empty_like(rows)
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            out[start : start + _BLOCK] = self.operator.matmat(block.T).T
            self.done += len(block)
            if self._progress is not None:
                self._progress(self.done, self._total)
        return out


def _signs(operator: SymmetricOperator, seed: int, indices: range) -> Tensor:
    like = torch.empty(0, dtype=operator.dtype, device=operator.device)
    return torch.stack([rademacher(operator.size, seed, i, like) for i in indices])


def _forms(counter: _Counter, seed: int, indices: range, basis: Tensor | None) -> Tensor:
    """`z'Hz` for each draw, with `z` projected off the rows of `basis`."""
    forms = [torch.empty(0, dtype=torch.float64)]
    for start in range(indices.start, indices.stop, _BLOCK):
        z = _signs(counter.operator, seed, range(start, min(start + _BLOCK, indices.stop)))
        if basis is not None:
            z = z - (z @ basis.T) @ basis
        forms.append((z.double() * counter.products(z).double()).sum(dim=1).cpu())
    return torch.cat(forms)
