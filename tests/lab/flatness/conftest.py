"""Trained runs, and copies of them to write into."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lesam.lab import recipes
from lesam.lab.config.text import override
from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Silent
from tests.lab.flatness.subjects import CHANGES


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    for method, seed in (("sgd", 0), ("lesam", 0), ("lesam", 1)):
        config = override(recipes.build("digits", method=method, scale="smoke", seed=seed), CHANGES)
        train(config, runs=runs, progress=Silent())
    return runs


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """Fresh copies, so that no test finds what another one measured."""
    return Path(shutil.copytree(trained, tmp_path / "runs"))
