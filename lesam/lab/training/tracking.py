"""Flatness while a run trains: measured now and then, within a share of the time, without a trace in the weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from lesam.lab.data.subset import Images
from lesam.lab.flatness.measures import TRACKED, Surface
from lesam.lab.runs.folder import Row
from lesam.lab.tasks.metrics import plain
from lesam.lab.training.session import Session

BATCH_SIZE = 500
COST = "track_seconds"
"""Column with the seconds that an epoch's measurement took; rows that have it were measured."""


class Tracker:
    """Measures the network at the end of epochs.

    A measurement is due after every ``record.track_every`` epochs and after the last one. It is put off to a later
    epoch while it would bring the time spent on measuring above ``record.track_share`` of the whole, if it took as
    long as the one before; the first one always takes place. Whether it takes place depends on the clock, the weights
    never do. With several workers the first decides and all measure the same, so that none has to wait for long.
    """

    def __init__(self, session: Session, rows: Sequence[Row], progress: Callable[[str], None]) -> None:
        """Prepare to measure; ``rows`` are those of the run so far, as the first worker reads them.

        ``progress`` is called with a sentence when a measurement fails.
        """
        self._session, self._progress = session, progress
        self._record = session.config.record
        measured = [row for row in rows if row.get(COST) is not None]
        self._spent = sum(float(row[COST]) for row in measured)
        self._last_cost = float(measured[-1][COST]) if measured else 0.0
        self._last_epoch = int(measured[-1]["epoch"]) + 1 if measured else 0
        self._images: Images | None = None

    def columns(self, *, elapsed: float) -> dict[str, float | None]:
        """Entries for the row of the epoch that ends now, empty if nothing is measured after it.

        Collective: every worker has to call it.

        Args:
            elapsed: Seconds since the start of the run, this epoch included.
        """
        if not self._record.track or not self._session.fabric.broadcast(self._takes_place(elapsed)):
            return {}
        began = time.monotonic()
        try:
            found = self._measured()
        except (ValueError, RuntimeError) as error:  # a diverged network has no curvature, but may continue to train
            names = ", ".join(self._record.track)
            self._progress(f"after epoch {self._session.epoch + 1}, {names} not measured: {error}")
            found = {}
        self._last_cost, self._last_epoch = time.monotonic() - began, self._session.epoch + 1
        self._spent += self._last_cost
        return found | {COST: self._last_cost}

    def _takes_place(self, elapsed: float) -> bool:
        """Whether a measurement is due and affordable."""
        epochs, every = self._session.epoch + 1, self._record.track_every
        final = self._session.step >= self._session.times.steps
        if not final and epochs // every == self._last_epoch // every:
            return False
        cost = self._last_cost
        return cost == 0.0 or self._spent + cost <= self._record.track_share * (elapsed + cost)

    def _measured(self) -> dict[str, float | None]:
        surface = Surface(self._session.module, self._subset())
        found: dict[str, float | None] = {}
        for name in self._record.track:
            measure = TRACKED[name]
            if (tracking := measure.tracking) is not None:
                result = measure.take(surface, **tracking.options)
                found |= {column: plain(value(result)) for column, value in tracking.columns.items()}
        return found

    def _subset(self) -> Images:
        if self._images is None:
            session = self._session
            self._images = Images(
                session.config,
                session.task.parts.splits,
                samples=self._record.track_samples,
                batch_size=BATCH_SIZE,
                seed=0,
                device=session.fabric.device,
            )
        return self._images
