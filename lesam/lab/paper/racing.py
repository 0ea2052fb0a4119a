"""Runs side by side in one process, some steps at a time, so that a busy machine favours none of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from lesam.lab.tasks.objective import Batch
from lesam.lab.training.session import Session


class Racer:
    """A session that takes some steps at a time, through as many epochs as that needs."""

    def __init__(self, session: Session) -> None:
        self._session, self._batches = session, self._stream(session)
        self.steps_per_epoch = session.times.steps_per_epoch

    @staticmethod
    def _stream(session: Session) -> Iterator[Batch]:
        epoch = 0
        while True:
            yield from session.task.batches(epoch, 0)
            epoch += 1

    def run(self, steps: int, clock: Callable[[], float] = time.perf_counter) -> float:
        """Take steps and return the seconds they took, the device's own work included."""
        session = self._session
        _wait(session.fabric.device)
        began = clock()
        for _ in range(steps):
            session.advance(next(self._batches))
            if session.batch == self.steps_per_epoch:
                session.end_epoch()
        _wait(session.fabric.device)
        return clock() - began


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
