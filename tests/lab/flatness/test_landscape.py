"""`lesam landscape` on run folders: the library's numbers, kept cell by cell."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from lesam.flatness import Landscape, landscape
from lesam.lab.cli import main
from lesam.lab.flatness.landscape import LandscapeSettings, measure_landscape
from tests.lab.flatness.subjects import Began, by_hand, one


@pytest.mark.parametrize("dimensions", [1, 2])
def test_a_landscape_is_the_librarys_on_the_same_weights_and_images(dimensions: int, runs: Path) -> None:
    settings = LandscapeSettings(points=5, span=0.5, dimensions=dimensions)
    for method in ("sgd", "lesam"):
        model, data = by_hand(one(runs, method))
        began = Began()
        found = measure_landscape(one(runs, method), settings=settings, progress=began)
        expected = landscape(model, cross_entropy, data, points=5, span=(-0.5, 0.5), dimensions=dimensions, seed=123)
        torch.testing.assert_close(found.loss, expected.loss, rtol=1e-9, atol=0)
        again = measure_landscape(one(runs, method), settings=settings, progress=began)
        assert torch.equal(again.loss, found.loss)
        assert len(began) == 1
    other = LandscapeSettings(points=5, span=0.5, dimensions=dimensions, batch_norm="reestimated")
    assert not torch.allclose(measure_landscape(one(runs), settings=other).loss, found.loss)


def test_the_landscape_command_draws_all_runs(runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    assert main(["landscape", str(runs), "--points", "4", "-o", str(figures)]) == 0
    assert main(["landscape", str(runs), "--points", "4", "--one-dimensional", "-o", str(figures)]) == 0
    assert "LE-SAM, seed 1\nloss landscape, 4 x 4 cells" in capsys.readouterr().out
    names = {f"landscape-{name}.{kind}" for name in ("contour", "surface", "line") for kind in ("png", "pdf")}
    assert {path.name for path in figures.iterdir()} == names


def test_a_killed_landscape_goes_on(runs: Path, tmp_path: Path) -> None:
    run = one(runs, "sgd")
    command = [sys.executable, "-m", "lesam", "landscape", str(run.path), "--points", "41", "--samples", "10000"]
    process = subprocess.Popen(
        [*command, "-o", str(tmp_path / "figures")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (files := list((run.path / "flatness").glob("*.npz"))):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "nothing was stored"
        time.sleep(0.01)
    process.kill()
    process.communicate()
    (file,) = files
    stored = Landscape.load(file)
    assert 0 < stored.missing < 41 * 41, "the process was too quick to be killed"
    # A value that no evaluation gives: if it is still there at the end, the cell was not evaluated again.
    stored.loss.view(-1)[0] = 123.0
    stored.save(file)
    seen: list[int] = []

    def stop_after_ten(done: int, total: int | None) -> None:
        seen.append(done)
        if len(seen) == 10:
            raise ConnectionError

    with pytest.raises(ConnectionError):
        measure_landscape(run, settings=LandscapeSettings(points=41), progress=lambda name: stop_after_ten)
    known = 41 * 41 - stored.missing
    assert seen == list(range(known + 1, known + 11))
    assert Landscape.load(file).missing == stored.missing - 10
    assert Landscape.load(file).loss.view(-1)[0] == 123.0
