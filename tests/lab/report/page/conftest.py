"""Trained runs that tests of the page look at: three methods over seeds, one diverged, one broken off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.running import BreakOff, smoke, trained

SEEDS = {"sgd": (0, 1, 2), "sam": (0, 1, 2, 7), "lesam": (0, 1, 2)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for method, seeds in SEEDS.items():
        for seed in seeds:
            trained(replace(smoke("digits", method=method), seed=seed), folder)
    trained(smoke("digits", "optimizer.lr=1e30", "optimizer.weight_decay=0.0", method="sgd"), folder)
    with pytest.raises(ConnectionError):
        trained(replace(smoke("digits", method="lesam"), seed=3), folder, BreakOff(epochs=1))
    return folder
