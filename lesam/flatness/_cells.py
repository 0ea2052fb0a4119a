"""Evaluate the loss at points of a plane, in this process or in several."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import NamedTuple

import torch
from torch import Tensor

from lesam.flatness._objective import Metric, Objective


class Cell(NamedTuple):
    """One point of the grid: where it is stored, and its coordinates along the directions."""

    place: int
    along: tuple[float, ...]


class CellValue(NamedTuple):
    """Loss (infinite where it is not a number: missing cells are marked by nan) and metric of a cell."""

    place: int
    loss: float
    metric: float


@dataclass(frozen=True)
class Plane:
    """`w + a d_1 + b d_2` and the objective on it."""

    objective: Objective
    directions: list[list[Tensor]]
    metric: Metric | None
    reestimate: bool = False
    """Whether BatchNorm's running statistics are those of the point instead of the trained ones."""

    def evaluate(self, cell: Cell) -> CellValue:
        """Loss and metric at a cell; the model's own weights never move."""
        point = self.objective.point()
        for length, direction in zip(cell.along, self.directions, strict=True):
            point = [torch.add(p, d, alpha=length) for p, d in zip(point, direction, strict=True)]
        buffers = self.objective.statistics(point) if self.reestimate else None
        loss, metric = self.objective.evaluate(point, self.metric, buffers)
        return CellValue(cell.place, loss if math.isfinite(loss) else math.inf, math.nan if metric is None else metric)


def evaluate_cells(plane: Plane, cells: Iterable[Cell], processes: int) -> Iterator[CellValue]:
    """Values in the order they are finished."""
    if processes == 1:
        yield from map(plane.evaluate, cells)
        return
    try:
        packed = pickle.dumps(plane)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"model, loss_fn, metric and data must be picklable for processes={processes}: {error}. "
            "Use functions defined at the top of a module, or processes=1"
        ) from error
    # Spawned, not forked: a forked child of a process that has used threads can wait for ever on their locks.
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(packed, max(1, torch.get_num_threads() // processes)),
    )
    with pool:
        try:
            for future in as_completed([pool.submit(_evaluate_in_worker, cell) for cell in cells]):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_plane: Plane | None = None


def _start_worker(packed: bytes, threads: int) -> None:
    global _plane
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _plane = pickle.loads(packed)


def _end_with_parent() -> None:
    """A worker waits for cells on a pipe that it holds open itself, so a killed parent would leave it for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _evaluate_in_worker(cell: Cell) -> CellValue:
    if _plane is None:
        raise RuntimeError("the worker was not started with a plane")
    return _plane.evaluate(cell)
