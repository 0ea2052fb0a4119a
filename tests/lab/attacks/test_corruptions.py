"""Corruptions against their closed forms, on runs, and on the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage

from lesam.lab.attacks.corrupted import corrupt_run
from lesam.lab.attacks.corruptions import CORRUPTIONS, SEVERITIES
from lesam.lab.cli import main
from lesam.lab.data.loading import choose_split, load_data
from lesam.lab.report.page.content import content
from lesam.lab.runs.folder import RunFolder
from tests.lab.running import smoke, trained


def source() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(4, 3, 16, 16, generator=source(), dtype=torch.float64)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_more_severity_moves_pixels_further_and_keeps_them_valid(name: str, images: torch.Tensor) -> None:
    moved = []
    for severity in SEVERITIES:
        spoiled = CORRUPTIONS[name](images, severity, source())
        assert spoiled.shape == images.shape
        assert spoiled.dtype == images.dtype
        assert 0 <= float(spoiled.min()) <= float(spoiled.max()) <= 1
        moved.append(float((spoiled - images).square().mean()))
    assert 0 < moved[0] < moved[-1]
    assert torch.equal(CORRUPTIONS[name](images, 3, source()), CORRUPTIONS[name](images, 3, source()))
    with pytest.raises(ValueError, match="severity must be 1 to 5, got 6"):
        CORRUPTIONS[name](images, 6, source())


def test_noise_has_the_moments_of_its_law() -> None:
    grey = torch.full((64, 1, 32, 32), 0.5, dtype=torch.float64)
    for name, deviation in (("gaussian noise", 0.08), ("shot noise", (0.5 / 100) ** 0.5)):
        spoiled = CORRUPTIONS[name](grey, 3, source())
        assert float(spoiled.mean()) == pytest.approx(0.5, abs=1e-3)
        assert float(spoiled.std()) == pytest.approx(deviation, rel=0.02)
    spoiled = CORRUPTIONS["impulse noise"](grey, 3, source())
    shares = [float((spoiled == value).double().mean()) for value in (0.0, 0.5, 1.0)]
    assert shares == pytest.approx([0.015, 0.97, 0.015], abs=2e-3)


def test_blur_is_scipy_s(images: torch.Tensor) -> None:
    expected = ndimage.gaussian_filter(images.numpy(), sigma=(0, 0, 0.7, 0.7), mode="nearest")
    np.testing.assert_allclose(CORRUPTIONS["gaussian blur"](images, 3, source()).numpy(), expected, atol=1e-12)


def test_contrast_and_brightness_by_hand() -> None:
    image = torch.tensor([0.2, 0.6, 0.0, 0.4]).view(1, 1, 2, 2)
    means_kept = torch.tensor([0.26, 0.42, 0.18, 0.34]).view(1, 1, 2, 2)
    torch.testing.assert_close(CORRUPTIONS["contrast"](image, 3, source()), means_kept)
    pixel = torch.tensor([0.6, 0.3, 0.0]).view(1, 3, 1, 1)  # hue and saturation stay, the value grows by 0.15
    raised = torch.tensor([0.75, 0.375, 0.0]).view(1, 3, 1, 1)
    torch.testing.assert_close(CORRUPTIONS["brightness"](pixel, 3, source()), raised)
    black = torch.zeros(1, 3, 1, 1)
    torch.testing.assert_close(CORRUPTIONS["brightness"](black, 3, source()), torch.full_like(black, 0.15))


def test_coarse_pixels_are_means_of_fine_ones() -> None:
    image = torch.arange(16.0).view(1, 1, 4, 4) / 16
    spoiled = CORRUPTIONS["pixelate"](image, 5, source())  # 4 x 0.65: two pixels a side
    assert len(spoiled.unique()) == 4
    torch.testing.assert_close(spoiled[0, 0, :2, :2], image[0, 0, :2, :2].mean().expand(2, 2))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(smoke("digits", "schedule.epochs=6", method="sgd"), tmp_path_factory.mktemp("runs"))


def test_a_run_s_outcome_is_kept_and_found_again(run: RunFolder) -> None:
    summary = run.summary()
    assert summary is not None
    outcome = corrupt_run(run)
    assert outcome.clean == pytest.approx(summary["last"]["test_accuracy"], abs=1e-6)
    assert list(outcome.corrupted) == list(CORRUPTIONS)
    assert outcome.images == len(choose_split(load_data(run.config()), "test"))
    assert outcome.means["gaussian noise"] == pytest.approx(np.mean(outcome.corrupted["gaussian noise"]))
    assert outcome.mean == pytest.approx(np.mean(list(outcome.corrupted.values())))
    assert outcome.corrupted["contrast"][-1] < outcome.clean  # an eighth of the contrast is left
    again = corrupt_run(run)
    assert again.reused
    assert replace(again, reused=False) == outcome
    other = corrupt_run(run, ["contrast"], samples=10)
    assert not other.reused
    other.file.unlink()  # the page shows one question only
    with pytest.raises(ValueError, match=r"corruption 'contrst'.*contrast"):
        corrupt_run(run, ["contrst"])


def test_the_command_tabulates_and_the_page_has_bars(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corrupt", str(run.path)]) == 0
    assert "gaussian blur" in capsys.readouterr().out
    shown = content([run], sources=[run.path])
    (section,) = (section for section in shown["sections"] if section["title"] == "Robustness")
    (chart,) = (chart for chart in section["charts"] if chart["id"] == "corruptions")
    outcome = corrupt_run(run)
    heights = {bar["category"]: bar["mean"] for bar in chart["bars"]}
    assert heights == pytest.approx({"clean": outcome.clean * 100} | {k: v * 100 for k, v in outcome.means.items()})
    outcome.file.write_text(json.dumps({"settings": {}}))
    assert str(outcome.file) in json.dumps(content([run], sources=[run.path]))


def test_inputs_that_are_no_images_are_refused(tmp_path: Path) -> None:
    signal = trained(smoke("mnist1d-mlp", method="adamw"), tmp_path)
    with pytest.raises(ValueError, match="corruptions are of images, and mnist1d has inputs of"):
        corrupt_run(signal)
