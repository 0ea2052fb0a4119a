"""The Hessian of a model's mean loss as a symmetric linear operator that leaves the model alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor, nn

from lesam.flatness._data import Batch
from lesam.flatness._objective import LossFunction, Objective, Selection
from lesam.flatness._products import GradientGraph, finite_difference
from lesam.flatness._results import Setting
from lesam.flatness._untouched import Mode

Product = Literal["autograd", "finite_difference"]


class SymmetricOperator(Protocol):
    """What the estimators need of a matrix: its size, and products with vectors."""

    @property
    def size(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def settings(self) -> dict[str, Setting]: ...

    def matvec(self, vector: Tensor) -> Tensor:
        """`H v` for a vector of length `size`."""

    def matmat(self, matrix: Tensor) -> Tensor:
        """`H V` for the columns of `V`."""


class HessianOperator:
    r"""Multiply vectors by the Hessian of the mean loss over any number of batches.

    .. math:: H = \sum_b \frac{n_b}{n} \nabla^2_w L_b(w), \qquad L_b \text{ the mean loss of batch } b

    The model's mode, gradients, buffers, `requires_grad` and the random state are the same before and after. Memory
    does not grow with the number of batches. What would make the numbers meaningless is refused: a random loss, a
    loss that is not a mean, data that changes between passes, non-finite losses, weights that change later.

    Args:
        model: Called as `model(input)`.
        loss_fn: Called as `loss_fn(output, target)`; returns the mean over the batch.
        data: Iterable of `(input, target)`, the same in each pass. An iterator is copied into memory.
        params: Names, parameters, or a predicate on `(name, parameter)`; default all that require a gradient.
        mode: "eval"; "train" (BatchNorm on batch statistics, as some studies do) or "current". Eigenvalues
            measured in different modes are not comparable.
        batch_size: Splits batches into pieces of at most this many samples, to save memory.
        product: "autograd" (double backward) is exact to rounding. "finite_difference" costs two gradients and is
            approximate; only for smooth activations, since kinks of ReLU count as curvature.
        step: Length of the finite-difference step; default `eps ** (1/3) * max(1, |w|) / 10`.
        keep_graphs: Batches whose gradient graph stays in memory between products, which makes products on them
            a third cheaper. Default: 1 if there is one batch, else 0.
        check: Whether to test the loss before measuring.

    Example:
        >>> import torch
        >>> from lesam.flatness import HessianOperator
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> operator = HessianOperator(torch.nn.Linear(2, 1, bias=False), torch.nn.functional.mse_loss, [(x, x[:, :1])])
        >>> operator @ torch.tensor([1.0, 1.0])      # 2 / n * x'x = diag(1, 4)
        tensor([1., 4.])

    References:
        Pearlmutter, "Fast exact multiplication by the Hessian", Neural Computation 6(1), 1994.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        data: Iterable[Any],
        *,
        params: Selection = None,
        mode: Mode = "eval",
        batch_size: int | None = None,
        product: Product = "autograd",
        step: float | None = None,
        keep_graphs: int | None = None,
        check: bool = True,
    ) -> None:
        if product not in get_args(Product):
            raise ValueError(f"product must be one of {get_args(Product)}, got {product!r}")
        if step is not None and step <= 0:
            raise ValueError(f"step must be positive, got {step}")
        self.objective = Objective(model, loss_fn, data, params=params, mode=mode, batch_size=batch_size, check=check)
        self.products = 0
        self._step = step or _default_step(self.objective)
        self._keep = (1 if self.objective.batches.count == 1 else 0) if keep_graphs is None else keep_graphs
        self._graphs: dict[int, GradientGraph] = {}
        self._differences = product == "finite_difference"

    @property
    def size(self) -> int:
        """Number of parameters, the side of the matrix."""
        return self.objective.size

    @property
    def shape(self) -> tuple[int, int]:
        """`(size, size)`."""
        return self.size, self.size

    @property
    def dtype(self) -> torch.dtype:
        """Of the vectors: the parameters' dtype, single precision for half-precision models."""
        return self.objective.dtype

    @property
    def device(self) -> torch.device:
        """Where vectors live."""
        return self.objective.device

    @property
    def loss(self) -> float:
        """The mean loss at the weights."""
        return self.objective.loss

    @property
    def settings(self) -> dict[str, Setting]:
        """What every number measured with this operator depends on."""
        used = f"finite difference, step {self._step:.3g}" if self._differences else "double backward"
        return self.objective.settings | {"product": used}

    def matvec(self, vector: Tensor) -> Tensor:
        """`H v` for a vector of length `size`."""
        if vector.shape != (self.size,):
            raise ValueError(f"expected a vector of length {self.size}, got shape {list(vector.shape)}")
        return self._apply([vector])[0]

    def matmat(self, matrix: Tensor) -> Tensor:
        """`H V` for the columns of `V`; cheaper than one by one, since they share each batch's gradient graph."""
        if matrix.ndim != 2 or matrix.shape[0] != self.size:
            raise ValueError(f"expected {self.size} rows, got shape {list(matrix.shape)}")
        return self._apply(list(matrix.T)).T if matrix.shape[1] else matrix.clone()

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.matvec(other) if other.ndim == 1 else self.matmat(other)

    def to_dense(self) -> Tensor:
        """The matrix itself, for small models."""
        return self.matmat(torch.eye(self.size, dtype=self.dtype, device=self.device))

    def to_scipy(self) -> Any:
        """As `scipy.sparse.linalg.LinearOperator`, for `eigsh` and its kin."""
        from scipy.sparse.linalg import LinearOperator

        kind = str(self.dtype).removeprefix("torch.")

        def matvec(vector: Any) -> Any:
            flat = torch.as_tensor(vector.reshape(-1), dtype=self.dtype, device=self.device)
            return self.matvec(flat).cpu().numpy()

        return LinearOperator(self.shape, matvec=matvec, rmatvec=matvec, dtype=kind)

    def _apply(self, vectors: list[Tensor]) -> Tensor:
        objective, samples = self.objective, self.objective.batches.samples
        objective.refuse_moved_weights()
        shaped = [objective.unflatten(v.detach().to(self.device, self.dtype)) for v in vectors]
        total = torch.zeros(len(vectors), self.size, dtype=self.dtype, device=self.device)
        with torch.inference_mode(False), torch.enable_grad(), objective.untouched():
            for index, batch in enumerate(objective.batches):
                for row, product in zip(total, self._batch_products(index, batch, shaped), strict=True):
                    row.add_(objective.flatten(product), alpha=batch.samples / samples)
        if not bool(total.isfinite().all()):
            raise RuntimeError("a Hessian product is not finite: the second derivative overflows at these weights")
        self.products += len(vectors)
        return total

    def _batch_products(self, index: int, batch: Batch, vectors: list[list[Tensor]]) -> Iterable[list[Tensor]]:
        point = self.objective.point()

        def loss(at: Sequence[Tensor]) -> Tensor:
            return self.objective.batch_loss(at, batch)

        if self._differences:
            return (finite_difference(loss, point, v, self._step) for v in vectors)
        return self._from_graph(index, self._graphs.get(index) or GradientGraph(loss, point), vectors)

    def _from_graph(self, index: int, graph: GradientGraph, vectors: list[list[Tensor]]) -> Iterable[list[Tensor]]:
        keep = index < self._keep
        if keep:
            self._graphs[index] = graph
        for number, vector in enumerate(vectors, start=1):
            yield graph.product(vector, keep=keep or number < len(vectors))


def _default_step(objective: Objective) -> float:
    """A tenth of the classical `eps^(1/3) |w|`: networks bend on a shorter scale than the norm of all weights."""
    length = float(torch.linalg.vector_norm(objective.flatten(objective.point())))
    return float(torch.finfo(objective.parameter_dtype).eps ** (1 / 3)) * max(1.0, length) / 10
