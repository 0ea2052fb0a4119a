"""Krylov chains: the Lanczos process with full re-orthogonalisation, honest about rounding, from several starts.

The process keeps an orthonormal basis `U` and what `H U` has outside of it: one *tail* for each chain. All coefficients
of `U'HU` come for free with the re-orthogonalisation, so all are kept: whatever the products' noise puts outside
the three diagonals of theory, or makes asymmetric, enters the residuals instead of being assumed away. A second chain
from a fresh random vector finds what the first cannot see, such as the copies of a repeated eigenvalue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lesam.flatness._basis import Basis, Storage
from lesam.flatness._operator import SymmetricOperator


class Ritz(NamedTuple):
    """Approximate eigenpairs, values descending; `coordinates[:, i]` is vector `i` in the basis."""

    values: Tensor
    residuals: Tensor
    coordinates: Tensor


@dataclass
class _Tail:
    """The part of `H u_column` outside the basis."""

    column: int
    vector: Tensor


class Krylov:
    """An orthonormal basis grown by one product a step."""

    def __init__(self, operator: SymmetricOperator, storage: Storage) -> None:
        self._operator = operator
        like = torch.empty(0, dtype=operator.dtype, device=operator.device)
        self.basis = Basis(operator.size, like, storage)
        self._projected = torch.zeros(32, 32, dtype=torch.float64)
        self._tails: list[_Tail] = []
        self._fresh: Tensor | None = None
        self._chain_of: list[int] = []
        self._chains = 0

    @property
    def steps(self) -> int:
        """Products taken, which is the size of the basis."""
        return len(self._chain_of)

    @property
    def extensible(self) -> bool:
        """Whether a step can be taken without a new start."""
        return self._fresh is not None or bool(self._tails)

    @property
    def chain_ended(self) -> bool:
        """Whether the newest chain has found an invariant subspace."""
        newest = self._chains - 1
        return self._fresh is None and not any(self._chain_of[t.column] == newest for t in self._tails)

    @property
    def whole(self) -> bool:
        """Whether the basis spans the whole space."""
        return self.steps >= self._operator.size

    def begin(self, start: Tensor) -> None:
        """Open a new chain at the part of `start` outside the basis."""
        outside, _ = self.basis.project_out(start)
        self._fresh, _ = self.basis.project_out(outside / outside.norm())
        self._chains += 1

    def step(self, tail: int = -1) -> None:
        """Take the fresh vector, or else one of the tails, into the basis and multiply it."""
        n = self.steps
        if n == len(self._projected):
            self._projected = torch.nn.functional.pad(self._projected, (0, n, 0, n))
        if self._fresh is not None:
            u, self._fresh = self._fresh, None
            chain = self._chains - 1
        else:
            taken = self._tails.pop(tail)
            length = float(taken.vector.norm())
            u, _ = self.basis.project_out(taken.vector / length)
            self._projected[n, taken.column] = length
            chain = self._chain_of[taken.column]
        u = u / u.norm()
        for other in self._tails:
            along = u @ other.vector
            other.vector = other.vector - along * u
            self._projected[n, other.column] = float(along)
        self.basis.append(u)
        self._chain_of.append(chain)
        w, coefficients = self.basis.project_out(self._operator.matvec(u))
        self._projected[: n + 1, n] = coefficients
        scale = float(self._projected[: n + 1, : n + 1].abs().max())
        floor = 10 * torch.finfo(w.dtype).eps * math.sqrt(n + 1) * scale
        if float(w.norm()) > floor and not self.whole:
            self._tails.append(_Tail(n, w))

    def ritz(self) -> Ritz:
        """Eigenpairs of the projected matrix, and the norms of `H y - theta y` for them."""
        n = self.steps
        projected = self._projected[:n, :n]
        symmetric = (projected + projected.T) / 2
        values, s = torch.linalg.eigh(symmetric)
        values, s = values.flip(0), s.flip(1)
        inside = torch.linalg.vector_norm((projected - symmetric) @ s, dim=0)
        outside = (s * (self._tail_gram() @ s)).sum(dim=0).clamp_min(0).sqrt()
        return Ritz(values, torch.hypot(inside, outside), s)

    def heaviest_tail(self, vector: Tensor) -> int:
        """Index of the tail that contributes most to the residual of the Ritz vector with these coordinates."""
        weights = [float(t.vector.norm() * vector[t.column].abs()) for t in self._tails]
        return max(range(len(weights)), key=weights.__getitem__) if weights else -1

    def bound_outside(self, failure: float = 0.01) -> tuple[float, float]:
        """The newest chain's largest value, and a bound on all of `H` restricted to what earlier chains do not span.

        After `j` steps from a random start `(lambda_1 - theta_1) / (lambda_1 - lambda_n) <= e` fails with
        probability at most `1.648 sqrt(n) exp(-sqrt(e) (2j - 1))`: Kuczynski and Wozniakowski, "Estimating the
        largest eigenvalue by the power and Lanczos algorithms with a random start", SIAM J. Matrix Anal. Appl. 13(4),
        1992.
        """
        own = torch.tensor(self._chain_of) == self._chains - 1
        block = self._projected[: self.steps, : self.steps][own][:, own]
        values = torch.linalg.eigvalsh((block + block.T) / 2)
        bottom, top = float(values[0]), float(values[-1])
        if self.chain_ended:
            return top, top
        e = (math.log(1.648 * math.sqrt(self._operator.size) / failure) / (2 * len(values) - 1)) ** 2
        return top, math.inf if e >= 1 else bottom + (top - bottom) / (1 - e)

    def count_above(self, level: float, outside: float) -> tuple[int, Tensor]:
        """Eigenvalues of `H` above `level` when those of the rest of the space reach up to `outside` below it.

        Also the coordinates of the lowest of them, whose tail is what to work on if the count is too high.

        With `H = [[S, E'], [E, B]]` in the basis and its complement and `B < level`, Haynsworth's inertia formula
        counts the eigenvalues of `S + E'(level - B)^-1 E` above `level`, at most `S + E'E / (level - outside)`:
        a Ritz value that has not converged may still rise above the level.
        """
        n = self.steps
        projected = self._projected[:n, :n]
        raised = (projected + projected.T) / 2 + self._tail_gram() / max(level - outside, 1e-300)
        values, s = torch.linalg.eigh(raised)
        count = int((values > level).sum())
        return count, s[:, n - max(count, 1)]

    def _tail_gram(self) -> Tensor:
        """Inner products of the tails, at the places of their columns."""
        gram = torch.zeros(self.steps, self.steps, dtype=torch.float64)
        for a in self._tails:
            for b in self._tails:
                gram[a.column, b.column] = float(a.vector @ b.vector)
        return gram
