"""Real processes for tests: started together, joined by gloo, gone afterwards whatever happens."""

from __future__ import annotations

import datetime
import fcntl
import json
import multiprocessing
import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lesam.optim.selfcheck.processes import run_together

WORLD = 2
#: Tests that start processes run one after another, in one worker of pytest-xdist.
one_at_a_time = pytest.mark.xdist_group("processes")

Scenario = Callable[[], Any]


def together(name: str, scenarios: Mapping[str, Scenario], factory: pytest.TempPathFactory) -> Outcomes:
    """Run every scenario in two processes of one group; their return values by scenario and rank.

    Starting processes costs seconds, so a test file starts them once and its tests look at the outcomes: also those in
    other workers of pytest-xdist, which wait here for the first. A scenario is a module-level function (or a partial of
    one). One that raises does so on every rank, or its peers wait in vain.
    """
    root = factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder = root / name
    folder.mkdir(exist_ok=True)
    with open(root / "processes.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            (folder / "done").write_text(json.dumps(_start(scenarios, folder)))
    files = [folder / f"rank{rank}.pt" for rank in range(WORLD)]
    codes = json.loads((folder / "done").read_text())
    return Outcomes([torch.load(file, weights_only=False) if file.exists() else {} for file in files], codes)


def _start(scenarios: Mapping[str, Scenario], folder: Path, timeout: float = 300.0) -> list[int | None]:
    """How the processes ended: their exit codes, minus the number of the signal that ended one."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_work, args=(rank, dict(scenarios), folder)) for rank in range(WORLD)]
    run_together(workers, timeout)
    return [worker.exitcode for worker in workers]


class Outcomes:
    """What the scenarios returned."""

    def __init__(self, by_rank: list[dict[str, Any]], exit_codes: list[int | None]) -> None:
        self.by_rank, self.exit_codes = by_rank, exit_codes

    def __getitem__(self, name: str) -> list[Any]:
        """The return values of one scenario, by rank; fails the test if there are none."""
        outcomes = [
            results.get(name, (False, f"the process did not get there; it ended with {code}"))
            for results, code in zip(self.by_rank, self.exit_codes, strict=True)
        ]
        broken = [f"rank {rank}: {value}" for rank, (fine, value) in enumerate(outcomes) if not fine]
        if broken:
            pytest.fail(f"{name}\n" + "\n".join(broken), pytrace=False)
        return [value for _, value in outcomes]


def _work(rank: int, scenarios: dict[str, Scenario], folder: Path) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",  # no port to be free or taken
        rank=rank,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=60),
    )
    results: dict[str, tuple[bool, Any]] = {}
    try:
        for name, scenario in scenarios.items():
            try:
                results[name] = True, scenario()
            except Exception:
                results[name] = False, traceback.format_exc()
            torch.save(results, folder / f"rank{rank}.pt")
            dist.barrier()
    finally:
        dist.destroy_process_group()
