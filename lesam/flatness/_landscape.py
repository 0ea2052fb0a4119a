"""Loss landscapes along one or two filter-normalised random directions, resumable and parallel."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lesam.flatness._cells import Cell, Plane, evaluate_cells
from lesam.flatness._directions import Normalization, cosine, random_direction
from lesam.flatness._objective import LossFunction, Metric, Objective, Selection
from lesam.flatness._results import Measurement, Progress, Setting
from lesam.flatness._untouched import Mode

# Settings that may differ between the session that started a landscape and the one that finishes it.
_FREE = frozenset({"torch", "lesam", "python", "device", "batch_size", "batches"})


@dataclass(frozen=True, eq=False, kw_only=True)
class Landscape(Measurement):
    """The loss on a line or a plane through the weights.

    Attributes:
        x: Coordinates along the first direction.
        y: Coordinates along the second; None for a line.
        loss: `(len(x),)`, or `(len(y), len(x))`: rows are `y`, columns `x`. Infinite where the loss is not a number,
            nan where it is not yet known.
        metric: The same for the metric, if one was given.
        cosine: Between the two directions; None for a line.
    """

    x: Tensor
    y: Tensor | None
    loss: Tensor
    metric: Tensor | None = None
    cosine: float | None = None

    @property
    def missing(self) -> int:
        """Cells not yet evaluated."""
        return int(self.loss.isnan().sum())

    def lines(self) -> list[str]:
        known = self.loss[~self.loss.isnan()]
        shape = " x ".join(str(n) for n in reversed(self.loss.shape))
        head = f"loss landscape, {shape} cells on [{self.x[0]:g}, {self.x[-1]:g}]"
        head += f", {self.missing} missing" if self.missing else ""
        return [
            head,
            f"  loss {float(self.settings['loss'] or 0):.6g} at the weights, "
            f"{float(known.min()):.4g} to {float(known.max()):.4g} on the grid",
        ]


def landscape(
    model: nn.Module,
    loss_fn: LossFunction,
    data: Iterable[Any],
    *,
    dimensions: Literal[1, 2] = 2,
    points: int = 51,
    span: tuple[float, float] = (-1.0, 1.0),
    seed: int = 123,
    normalization: Normalization = "filter",
    batch_norm: Literal["trained", "reestimated"] = "trained",
    metric: Metric | None = None,
    params: Selection = None,
    mode: Mode = "eval",
    batch_size: int | None = None,
    path: str | Path | None = None,
    save_every: float = 5.0,
    processes: int = 1,
    progress: Progress | None = None,
) -> Landscape:
    """Evaluate `f(a, b) = L(w + a d_x + b d_y)` on a grid.

    The raw random directions depend on the seed and the parameters' shapes alone, so models of one architecture are
    cut along the same draws, each scaled to its own filters.

    Args:
        model: Left as it was.
        loss_fn: `loss_fn(output, target)`, the mean over a batch.
        data: Iterable of `(input, target)`, the same in each pass.
        dimensions: 1 for a line, 2 for a plane.
        points: Cells along each direction.
        span: First and last coordinate along each direction.
        seed: Of the directions.
        normalization: "filter" (Li et al.), "layer" or "none".
        batch_norm: "trained" leaves BatchNorm's running statistics as they are (Li et al.); "reestimated" estimates
            them anew in each cell, as the mean over the batches of `data`, for one more pass over it.
        metric: `metric(output, target)`, a mean over a batch such as the accuracy, evaluated alongside.
        params: Which parameters may move; default all that require a gradient.
        mode: As in `HessianOperator`.
        batch_size: Splits larger batches.
        path: An `.npz` file that always holds what is known so far. If it exists, its missing cells are continued; if
            it belongs to other weights, data or options, that is an error.
        save_every: Seconds between writes to `path`.
        processes: Number of worker processes; more than 1 needs picklable arguments, and the usual
            `if __name__ == "__main__":` in scripts.
        progress: Called as `progress(cells, total)`.

    Example:
        >>> import torch
        >>> from lesam.flatness import landscape
        >>> x = torch.ones(4, 1)
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> line = landscape(model, torch.nn.functional.mse_loss, [(x, model(x).detach())], dimensions=1, points=3)
        >>> bool(torch.isclose(line.loss[0], model.weight.double().square()))     # |d| = |w|: the loss of zero weights
        True

    References:
        Li, Xu, Taylor, Studer, Goldstein, "Visualizing the loss landscape of neural nets", NeurIPS 2018.
    """
    if dimensions not in (1, 2):
        raise ValueError(f"dimensions must be 1 or 2, got {dimensions}")
    if points < 2 or not span[0] < span[1]:
        raise ValueError(f"points must be at least 2 and span ascending, got {points} and {span}")
    if normalization not in get_args(Normalization):
        raise ValueError(f"normalization must be one of {get_args(Normalization)}, got {normalization!r}")
    if batch_norm not in ("trained", "reestimated"):
        raise ValueError(f'batch_norm must be "trained" or "reestimated", got {batch_norm!r}')
    if batch_norm == "reestimated" and mode != "eval":
        raise ValueError(
            f'batch_norm="reestimated" needs mode="eval", got {mode!r}: other modes may not use statistics'
        )
    if processes < 1:
        raise ValueError(f"processes must be at least 1, got {processes}")
    target = None if path is None else Path(path)
    if target is not None and target.suffix != ".npz":
        raise ValueError(f"path must end in .npz, got {target.name!r}")
    objective = Objective(model, loss_fn, data, params=params, mode=mode, batch_size=batch_size)
    directions = [random_direction(objective.point(), seed, axis, normalization) for axis in range(dimensions)]
    options: dict[str, Setting] = {
        "seed": seed,
        "normalization": normalization,
        "checksum": objective.checksum,
        "with_metric": metric is not None,
    }
    if batch_norm == "reestimated":
        options["batch_norm"] = batch_norm
    axis = torch.linspace(span[0], span[1], points, dtype=torch.float64)
    empty = torch.full((points,) * dimensions, torch.nan, dtype=torch.float64)
    found = Landscape(
        settings=objective.settings | options,
        x=axis,
        y=axis.clone() if dimensions == 2 else None,
        loss=empty,
        metric=None if metric is None else empty.clone(),
        cosine=cosine(*directions) if dimensions == 2 else None,
    )
    if target is not None and target.exists():
        found = _continued(found, Landscape.load(target), target)
    plane = Plane(objective, directions, metric, batch_norm == "reestimated")
    _fill(found, plane, processes, target, save_every, progress)
    return found


def _fill(
    found: Landscape,
    plane: Plane,
    processes: int,
    path: Path | None,
    save_every: float,
    progress: Progress | None,
) -> None:
    """Evaluate the missing cells into the result's own tensors, and keep the file up to date."""
    loss = found.loss.view(-1)
    metric = None if found.metric is None else found.metric.view(-1)
    axes = [found.x.tolist()] if found.y is None else [found.y.tolist(), found.x.tolist()]
    coordinates = torch.cartesian_prod(*(torch.tensor(a, dtype=torch.float64) for a in axes)).reshape(len(loss), -1)
    missing = loss.isnan().nonzero().flatten().tolist()
    cells = [Cell(place, tuple(reversed(coordinates[place].tolist()))) for place in missing]
    done, saved = len(loss) - len(cells), time.monotonic()
    values = evaluate_cells(plane, cells, min(processes, max(1, len(cells))))
    try:
        for value in values:
            loss[value.place] = value.loss
            if metric is not None:
                metric[value.place] = value.metric
            done += 1
            if path is not None and time.monotonic() - saved >= save_every:
                found.save(path)
                saved = time.monotonic()
            if progress is not None:
                progress(done, len(loss))
    finally:
        if path is not None:
            found.save(path)


def _continued(wanted: Landscape, stored: Landscape, path: Path) -> Landscape:
    """The stored landscape, if it is an unfinished (or finished) version of the wanted one."""
    # Statistics that are estimated from batches depend on how the data is cut into them.
    free = _FREE - {"batch_size", "batches"} if "batch_norm" in wanted.settings else _FREE
    pairs: dict[str, tuple[Any, Any]] = {
        name: (stored.settings.get(name), wanted.settings.get(name))
        for name in wanted.settings.keys() | stored.settings.keys()
        if name not in free and not name.startswith("key.")
    }
    pairs["grid"] = (stored.x.tolist(), wanted.x.tolist())
    pairs["dimensions"] = (stored.loss.ndim, wanted.loss.ndim)
    for name, (there, here) in sorted(pairs.items()):
        if not _agree(there, here):
            raise ValueError(
                f"{path} holds another landscape: {name} is {there} there and {here} here. "
                "Delete the file or use another path"
            )
    return stored


def _agree(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        # Sums depend in the last digits on the number of threads.
        return math.isclose(a, b, rel_tol=1e-5)
    return bool(a == b)
