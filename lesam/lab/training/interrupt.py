"""SIGINT and SIGTERM become a wish to stop after the current step; a second SIGINT stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class RunInterruptedError(RuntimeError):
    """A run was asked to stop, and did so with a checkpoint."""


class Interrupt:
    """While active, remembers that the process was asked to stop instead of dying in the middle of a step."""

    def __init__(self) -> None:
        """Nothing is requested yet."""
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        """Take over the signals (only the main thread may)."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
