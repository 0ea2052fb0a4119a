"""Searches of tests: small runs, drivers in processes of their own, and a server for studies."""

from __future__ import annotations

import multiprocessing
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna

from lesam.lab import recipes
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.execution.local import Pool
from lesam.lab.sweeps import search
from lesam.lab.sweeps.grid import Build
from lesam.lab.sweeps.proposals import NumberedSampler
from lesam.lab.sweeps.ranges import Range
from lesam.lab.sweeps.storage import open_study

SIGMA = (Range.parse("optimizer.sigma=0.05:0.5:log"),)


def short(epochs: int, checkpoint_every: int) -> Build:
    def build(setting: Sequence[str], seed: int) -> RunConfig:
        config = recipes.build("digits", method="lesam", scale="smoke", seed=seed)
        small = [
            "data.options.train_size=100",
            "data.options.validation=0.1",
            f"record.checkpoint_every={checkpoint_every}",
        ]
        return override(config, [f"schedule.epochs={epochs}", *small, *setting])

    return build


def find(
    storage: str, runs: Path, *, epochs: int = 1, trials: int = 1, checkpoint_every: int = 100, **more: Any
) -> Any:
    build = short(epochs, checkpoint_every)
    options = {"executor": Pool(runs=runs, jobs=1), "build": build, "ranges": SIGMA, "seeds": [0], **more}
    return search.search(**options, trials=trials, study_name="mine", storage=storage, runs=runs)


def opened(storage: str, seed: int = 0) -> optuna.Study:
    """The study that :func:`find` works on."""
    return open_study(storage, name="mine", sampler=NumberedSampler(seed), pruner=optuna.pruners.NopPruner())


def driver(storage: str, runs: Path, host: str, **options: Any) -> Any:
    """A driver in a process of its own, on a machine of that name."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lesam.lab.training.loop"])  # as a pool does, which shares the server
    process = context.Process(target=_drive, args=(storage, runs, host, options))
    process.start()
    return process


def _drive(storage: str, runs: Path, host: str, options: dict[str, Any]) -> None:
    platform.node = lambda: host
    find(storage, runs, **options)


def until(happened: Callable[[], object], seconds: float = 60) -> None:
    ending = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < ending
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def grpc_server(folder: Path) -> Iterator[str]:
    """Optuna's own server before an SQLite file."""
    port = free_port()
    code = (
        "import optuna, sys; optuna.storages.run_grpc_proxy_server("
        "optuna.storages.get_storage(sys.argv[1]), host='127.0.0.1', port=int(sys.argv[2]))"
    )
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, f"sqlite:///{folder / 'behind.sqlite3'}", str(port)]
    )
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()
