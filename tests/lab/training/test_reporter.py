"""What a person sees while a run trains."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from lesam.lab.training.reporter import Bar
from tests.lab.running import smoke


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_bar_keeps_its_width_and_shows_the_epoch_and_the_best_so_far(width: int) -> None:
    screen = io.StringIO()
    bar = Bar(Console(file=screen, width=width, force_terminal=True, color_system=None))
    bar.start(smoke("digits", method="lesam"), steps=500, done=250)
    row = {
        **{"epoch": 24, "step": 250, "train_loss": 0.512, "train_accuracy": 0.9, "validation_accuracy": 0.8},
        **{"test_accuracy": 0.7981, "best_test_accuracy": 0.8123, "rho": 0.123, "capped": 0.25},
    }
    bar.epoch(row | {"images_per_second": 12345.0}, epochs=50)
    bar.stop()
    last = [line for line in screen.getvalue().replace("\x1b", "\n").splitlines() if "seed 0" in line][-1]
    assert "digits lesam seed 0, epoch 25/50" in last
    assert last.count("━") == 8  # half of it
    assert ("best test 81.23 %" in last) == (width >= 100)
    assert len(last.removeprefix("[2K")) <= width
