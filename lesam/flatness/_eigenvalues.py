"""The algebraically largest eigenvalues, with residuals and a flag for each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lesam.flatness._basis import Basis, Storage
from lesam.flatness._lanczos import Krylov, Ritz
from lesam.flatness._operator import SymmetricOperator
from lesam.flatness._power import deflated_power
from lesam.flatness._random import normal
from lesam.flatness._results import Measurement, Progress, Setting


@dataclass(frozen=True, eq=False, kw_only=True)
class Eigenvalues(Measurement):
    """Eigenvalues in descending order.

    Attributes:
        values: The `k` algebraically largest.
        residuals: `|Hv - lambda v|` for unit `v`: some eigenvalue lies within this distance of the value.
        converged: Whether the residual is at most `tolerance * |lambda|`.
        complete: Whether a fresh random start found nothing larger that is missing from the list (always False
            without that check); copies of a repeated eigenvalue are found by it.
        products: Hessian products spent.
        vectors: Unit eigenvectors as rows in CPU memory, if asked for.
    """

    values: Tensor
    residuals: Tensor
    converged: Tensor
    complete: bool
    products: int
    vectors: Tensor | None = None
    _bulky: ClassVar[frozenset[str]] = frozenset({"vectors"})

    def lines(self) -> list[str]:
        done = int(self.converged.sum())
        head = f"top {len(self.values)} Hessian eigenvalues, {done} converged, {self.products} products"
        if done == len(self.values):
            head += ", complete" if self.complete else ", not checked for missing ones"
        rows = [
            f"  {i:>3}  {value:>12.6g}  residual {residual:.1e}{'' if ok else '  not converged'}"
            for i, (value, residual, ok) in enumerate(
                zip(self.values.tolist(), self.residuals.tolist(), self.converged.tolist(), strict=True), start=1
            )
        ]
        return [head, *(rows if len(rows) <= 12 else [*rows[:8], "  ...", *rows[-3:]])]


def top_eigenvalues(
    operator: SymmetricOperator,
    k: int = 50,
    method: Literal["lanczos", "power"] = "lanczos",
    *,
    tolerance: float = 1e-3,
    max_iterations: int | None = None,
    seed: int = 0,
    eigenvectors: bool = False,
    confirm: bool = True,
    storage: Storage = "device",
    progress: Progress | None = None,
) -> Eigenvalues:
    """The `k` algebraically largest eigenvalues of a symmetric operator.

    "lanczos" takes products until the `k` largest Ritz pairs have converged, then starts once more from a random
    vector, a few products long, until it is all but certain that nothing larger was missed (one start can find
    only one copy of a repeated eigenvalue). "power" is deflated power iteration, as common in the literature: it needs
    many more products and converges poorly where eigenvalues are close; negative eigenvalues it meets are deflated
    and left out.

    Args:
        operator: A `HessianOperator`, or anything with its `size`, `matvec`, `dtype`, `device` and `settings`.
        k: How many.
        method: "lanczos" or "power".
        tolerance: On the relative residual `|Hv - lambda v| / |lambda|`.
        max_iterations: Most products in all for "lanczos" (default `10 k + 100`), per eigenvalue for "power"
            (default 100). What has not converged by then is returned with its flag down.
        seed: Of the starting vectors.
        eigenvectors: Return the vectors too.
        confirm: For "lanczos": make the second start.
        storage: Where the basis lives: "device", "cpu", or a folder (`pathlib.Path`) for memory-mapped files. It
            takes one vector of the model's size for each product.
        progress: Called as `progress(products, most)`.

    Example:
        >>> import torch
        >>> from lesam.flatness import HessianOperator, top_eigenvalues
        >>> x = torch.eye(4, dtype=torch.float64) * torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
        >>> model = torch.nn.Linear(4, 1, bias=False, dtype=torch.float64)
        >>> operator = HessianOperator(model, torch.nn.functional.mse_loss, [(x, x[:, :1])])
        >>> found = top_eigenvalues(operator, k=2)      # 2 / 4 * diag(1, 4, 9, 16)
        >>> [round(value, 6) for value in found.values.tolist()]
        [8.0, 4.5]

    References:
        Paige, "The computation of eigenvalues and eigenvectors of very large sparse matrices", thesis, 1971.
        Parlett, "The symmetric eigenvalue problem", SIAM, 1998, chapter 13.
    """
    if not 1 <= k <= operator.size:
        raise ValueError(f"k must be between 1 and the number of parameters {operator.size}, got {k}")
    if method not in ("lanczos", "power"):
        raise ValueError(f'method must be "lanczos" or "power", got {method!r}')
    if tolerance <= 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}")
    if method == "power":
        iterations = 100 if max_iterations is None else max_iterations
        locked = Basis(operator.size, torch.empty(0, dtype=operator.dtype, device=operator.device), storage)
        try:
            values, residuals, products = deflated_power(operator, k, tolerance, iterations, seed, locked, progress)
            order = values.argsort(descending=True)[:k]
            values, residuals, complete = values[order], residuals[order], False
            vectors = locked.rows(order.tolist()) if eigenvectors else None
        finally:
            locked.close()
    else:
        iterations = 10 * k + 100 if max_iterations is None else max_iterations
        krylov = Krylov(operator, storage)
        try:
            complete = _Search(krylov, operator, k, tolerance, iterations, seed).run(confirm, progress)
            ritz = krylov.ritz()
            values, residuals, products = ritz.values[:k], ritz.residuals[:k], krylov.steps
            vectors = krylov.basis.combine(ritz.coordinates[:, :k].T).cpu() if eigenvectors else None
        finally:
            krylov.basis.close()
    options: dict[str, Setting] = {
        "method": method,
        "k": k,
        "tolerance": tolerance,
        "max_iterations": iterations,
        "seed": seed,
    }
    return Eigenvalues(
        settings=operator.settings | options,
        values=values,
        residuals=residuals,
        converged=residuals <= _allowed(values, tolerance, operator.dtype),
        complete=complete,
        products=products,
        vectors=vectors,
    )


class _Search:
    """Find the largest Ritz pairs, then make sure that none is missing."""

    def __init__(
        self, krylov: Krylov, operator: SymmetricOperator, k: int, tolerance: float, budget: int, seed: int
    ) -> None:
        if budget < k:
            raise ValueError(f"max_iterations must be at least k = {k}, got {budget}")
        self._krylov, self._operator, self._k = krylov, operator, k
        self._tolerance, self._budget, self._seed = tolerance, budget, seed
        self._starts = 0

    def run(self, confirm: bool, progress: Progress | None) -> bool:
        """Grow the basis; whether nothing above the `k`-th value can be missing."""
        self._progress = progress
        while self._find():
            if not confirm:
                return False
            missed = self._confirm()
            if missed is not None:
                return not missed
        return False

    def _find(self) -> bool:
        """Step until the `k` largest Ritz pairs have converged; False if the budget ends first."""
        krylov, check = self._krylov, self._k
        tail = -1
        while True:
            if krylov.steps >= min(check, self._budget) or krylov.whole:
                ritz = krylov.ritz()
                bad = (~self._good(ritz)).nonzero()
                if not len(bad):
                    return True
                check = krylov.steps + max(1, krylov.steps // 20)
                # Work on the chain that the first pair in need depends on.
                tail = krylov.heaviest_tail(ritz.coordinates[:, int(bad[0])])
            else:
                tail = -1
            if krylov.steps >= self._budget:
                return False
            if not krylov.extensible:
                self._begin()
            self._step(tail)

    def _confirm(self) -> bool | None:
        """Look with a fresh start; False if nothing is missing, True if that stays open, None to find more."""
        krylov = self._krylov
        if krylov.whole:
            return False
        self._begin()
        bounded, top, tail = False, math.inf, -1
        while krylov.steps < self._budget:
            self._step(tail)
            ritz = krylov.ritz()
            if not self._good(ritz).all():
                return None
            kth = ritz.values[self._k - 1]
            level = float(kth + _allowed(ritz.values[: self._k], self._tolerance, self._operator.dtype)[-1])
            if not bounded:
                top, bound = krylov.bound_outside()
                if top > level:
                    return None
                # Once met, the bound holds for what is left when older chains are continued.
                bounded = bound <= level
            if bounded:
                count, lowest = krylov.count_above(level, top)
                if count <= int((ritz.values > level).sum()):
                    return False
                tail = krylov.heaviest_tail(lowest)
        return True

    def _good(self, ritz: Ritz) -> Tensor:
        """Which of the `k` largest have converged; one that does not exist yet has not."""
        values, residuals = ritz.values[: self._k], ritz.residuals[: self._k]
        good = torch.zeros(self._k, dtype=torch.bool)
        good[: len(values)] = residuals <= _allowed(values, self._tolerance, self._operator.dtype)
        return good

    def _begin(self) -> None:
        like = torch.empty(0, dtype=self._operator.dtype, device=self._operator.device)
        self._krylov.begin(normal(self._operator.size, self._seed, self._starts, like))
        self._starts += 1

    def _step(self, tail: int) -> None:
        self._krylov.step(tail)
        if self._progress is not None:
            self._progress(self._krylov.steps, self._budget)


def _allowed(values: Tensor, tolerance: float, dtype: torch.dtype) -> Tensor:
    """`tolerance * |lambda|`, with a floor for eigenvalues that are zero next to the largest."""
    floor = torch.finfo(dtype).eps ** (2 / 3) * values.abs().max()
    return tolerance * values.abs().maximum(floor)
