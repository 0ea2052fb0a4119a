"""Leases of trials: who works on a trial says so again and again, on any machine; an expired one is anybody's."""

from __future__ import annotations

import os
import platform
import threading
import time
import uuid
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import optuna

SECONDS = 300.0
"""Of a lease. It is renewed three times as often; clocks of machines that share a study may differ by a part of it."""
LEASE = "lease"
"""Attribute of a trial: ``owner``, as in ``host:pid:random``, and ``until``, in seconds since 1970."""


class Leases:
    """Holds the leases of one process and renews them, to be used in a ``with`` block.

    They are renewed by a thread, so that it happens while a run has nothing to tell for long.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        """Say how long a lease is."""
        if not seconds > 0:
            raise ValueError(f"a lease must be longer than 0 seconds, got {seconds}")
        self.seconds = seconds
        self.owner = f"{platform.node()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.lost: set[int] = set()
        """Trials that others have taken over, as their leases had expired."""
        self._held: dict[int, optuna.Trial] = {}
        self._ending = threading.Event()
        self._renewing = threading.Thread(target=self._renew_again_and_again, name="leases", daemon=True)

    def __enter__(self) -> Leases:
        """Begin to renew."""
        self._renewing.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Renew no more."""
        self._ending.set()
        self._renewing.join()

    def hold(self, trial: optuna.Trial) -> None:
        """Take the lease of a trial that was asked for."""
        self._renew(trial)
        self._held[trial.number] = trial

    def drop(self, number: int) -> None:
        """Hold the lease of a trial no longer."""
        self._held.pop(number, None)

    def _renew(self, trial: optuna.Trial) -> None:
        trial.set_user_attr(LEASE, {"owner": self.owner, "until": time.time() + self.seconds})

    def _renew_again_and_again(self) -> None:
        from optuna.exceptions import UpdateFinishedTrialError

        while not self._ending.wait(self.seconds / 3):
            for number, trial in list(self._held.items()):
                try:
                    self._renew(trial)
                except UpdateFinishedTrialError:
                    if number in self._held:  # else its owner has ended it meanwhile
                        self.lost.add(number)
                        self.drop(number)
                except Exception:  # a storage that does not answer now may do so before the lease ends
                    continue


def is_free(trial: optuna.trial.FrozenTrial, ours: Leases) -> bool:
    """Whether nobody works on a trial that is said to be running.

    Its lease has expired, or its owner is a process of this machine that is no more. One that died before it could take
    a lease is given the time of one.
    """
    lease = trial.user_attrs.get(LEASE)
    if lease is None:
        began = trial.datetime_start
        return began is None or time.time() > began.timestamp() + ours.seconds
    if lease["owner"] == ours.owner:
        return False
    host, pid, _ = lease["owner"].rsplit(":", 2)
    return time.time() > lease["until"] or (host == platform.node() and not _alive(int(pid)))


def host_of(trial: optuna.trial.FrozenTrial) -> str:
    """The machine that works on a trial, or did; empty where nobody has yet."""
    lease = trial.user_attrs.get(LEASE)
    return "" if lease is None else str(lease["owner"]).rsplit(":", 2)[0]


def _alive(pid: int) -> bool:
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
