"""Signals become a wish to stop after the current step; a second SIGINT stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

BEFORE_THE_LIMIT = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))
"""What clusters send before a time limit, or before another job takes the machine."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, *BEFORE_THE_LIMIT)


class RunInterruptedError(RuntimeError):
    """A run was asked to stop by a signal, and did so with a checkpoint."""

    def __init__(self, message: str, signal: int | None = None) -> None:
        super().__init__(message)
        self.signal = signal


class Interrupt:
    """While active, remembers that the process was asked to stop instead of dying in the middle of a step."""

    def __init__(self) -> None:
        """No signal has come yet: its number is 0."""
        self.signal = 0
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
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
