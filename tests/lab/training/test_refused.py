"""A setting that is refused leaves no folder behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Silent
from tests.lab.running import smoke


@pytest.mark.parametrize(
    ("method", "change", "complaint"),
    [
        ("lesam", "optimizer.sigma=-1", r"optimizer\.sigma must be a number >= 0, got -1"),
        ("sam", "optimizer.rho=nan", r"optimizer\.rho must be a number >= 0, got nan"),
        ("sgd", "record.checkpoint_steps=0", r"record\.checkpoint_steps must be at least 1 or None, got 0"),
    ],
)
def test_a_refused_setting_leaves_nothing_behind(method: str, change: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=complaint):
        train(smoke("digits", change, "system.accelerator=cpu", method=method), runs=tmp_path, progress=Silent())
    assert not list(tmp_path.iterdir())
