"""Runs as tasks of a Ray cluster; a task whose node or process is lost is started again elsewhere, and resumes."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Hashable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from lesam.lab.execution.jobs import RETRIES
from lesam.lab.execution.remote import Needs, Remote, Task, missing
from lesam.lab.execution.work import Answer

SECONDS_TO_ANSWER = 10
"""A cluster that does not answer for so long is not there."""


class OnRay(Remote):
    """A cluster by its address; without one, that of ``RAY_ADDRESS``, the one running here, or a new one."""

    def __init__(self, *, address: str | None, runs: Path | str, jobs: int | None, needs: Needs) -> None:
        """Connect to the cluster, and see that it can give what a run asks for."""
        super().__init__(runs=runs, jobs=jobs, needs=needs)
        _check_answers(address)
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # which Ray wants said
        ray: Any = import_module("ray")
        self._ray = ray
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"--on ray{f':{address}' if address else ''}: there is no such cluster "
                f"({str(error).partition(chr(10))[0]}); `ray start --head` starts one"
            ) from None
        there = ray.cluster_resources()
        for name, wanted in (("CPU", needs.cpus), ("GPU", needs.gpus)):
            most = max((node["Resources"].get(name, 0.0) for node in ray.nodes() if node["Alive"]), default=0.0)
            if wanted > most:
                raise ValueError(
                    f"a run asks for {wanted:g} {name}, and no node of the cluster has more than {most:g} "
                    f"({there.get(name, 0):g} in all); lower --{name.lower()}s"
                )
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_retries": RETRIES, "retry_exceptions": False}
        self._train = ray.remote(**options)(_train)

    def prepare(self, mark: str) -> None:
        """Ask every node whether it sees the folder of runs."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        look = self._ray.remote(num_cpus=0, max_retries=0)(missing)
        asked = [
            look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)).remote(
                str(self.runs), mark
            )
            for node in self._ray.nodes()
            if node["Alive"]
        ]
        complaints = []
        for each in asked:
            with suppress(self._ray.exceptions.RayError):  # a node that has gone since will not be given a run
                complaints.append(self._ray.get(each, timeout=120))
        if found := sorted({words for words in complaints if words}):
            raise ValueError("\n".join(found))

    def send(self, tasks: Sequence[Task]) -> list[Hashable]:
        """Queue tasks."""
        return [self._train.remote(task) for task in tasks]

    def answers(self, tickets: Sequence[Any], seconds: float) -> dict[Any, Answer]:
        """What has ended."""
        ready, _ = self._ray.wait(list(tickets), num_returns=len(tickets), timeout=seconds)
        return {ticket: self._answer(ticket) for ticket in ready}

    def cancel(self, tickets: Sequence[Any]) -> None:
        """Interrupt tasks, as Ctrl-C would."""
        for ticket in tickets:
            self._ray.cancel(ticket)
        self._ray.wait(list(tickets), num_returns=len(tickets), timeout=60)

    def _answer(self, ticket: Any) -> Answer:
        errors = self._ray.exceptions
        try:
            kind, value = self._ray.get(ticket)
        except errors.TaskCancelledError:
            return "interrupted", None
        except errors.OutOfMemoryError as error:
            return "failed", f"its node ran out of memory {RETRIES + 1} times: {str(error).partition(chr(10))[0]}"
        except errors.RayTaskError as error:  # nothing of ours raises: the program is not there, or another one
            return "failed", str(error).strip().splitlines()[-1]
        except errors.RayError as error:
            words = str(error).strip().partition("\n")[0]
            return "failed", f"its process or node was lost {RETRIES + 1} times: {words}"
        return kind, value


def _check_answers(address: str | None) -> None:
    """Refuse a host and port where nobody listens: Ray itself would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"--on ray:{address}: there is no such cluster ({error}); `ray start --head` starts one"
        ) from None


def _train(task: Task) -> Answer:
    return task()
