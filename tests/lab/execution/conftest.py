"""A run that is long enough to be disturbed, and what it gives undisturbed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lesam.lab import recipes
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.runs.folder import RunFolder
from tests.lab.running import assert_same_run, trained

LONG = ("schedule.epochs=300", "data.options.train_size=100", "record.evaluate_every=50", "record.checkpoint_every=10")


def long_run(*changes: str, seed: int = 0) -> RunConfig:
    return override(recipes.build("digits", method="lesam", scale="smoke", seed=seed), [*LONG, *changes])


def wait_for(condition: Callable[[], object], seconds: float = 240.0) -> None:
    """Until it holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def epochs(config: RunConfig, runs: Path) -> int:
    """Epochs that a run has written so far."""
    file = RunFolder.of(config, runs).path / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[RunConfig, Path], None]:
    """That a run which others have trained below a folder ended as that of a single process does, bit for bit."""
    own = tmp_path_factory.mktemp("undisturbed")

    def compare(config: RunConfig, runs: Path) -> None:
        torch.set_num_threads(1)
        assert_same_run(RunFolder.of(config, runs), trained(config, own))

    return compare
