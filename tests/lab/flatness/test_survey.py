"""`lesam flatness` and `lesam landscape` on run folders: the library's numbers, kept for the same question only."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from lesam.flatness import HessianOperator, low_pass_filter, top_eigenvalues, trace
from lesam.lab.cli import main
from lesam.lab.flatness import table
from lesam.lab.flatness.landscape import LandscapeSettings
from lesam.lab.flatness.measures import FlatnessSettings
from lesam.lab.flatness.survey import Survey, measure_curve, measure_run
from lesam.lab.runs import checkpoint as checkpoints
from tests.lab.flatness.subjects import SETTINGS, Began, by_hand, one


def test_the_numbers_are_the_librarys_on_the_same_weights_and_images(runs: Path) -> None:
    run = one(runs)
    for epoch, step in ((2, 6), (None, 12)):
        found = measure_run(run, epoch=epoch, settings=SETTINGS)
        model, data = by_hand(run, step)
        operator = HessianOperator(model, cross_entropy, data)
        assert found.epoch == step // 3
        expected = top_eigenvalues(operator, 3)
        torch.testing.assert_close(found["eigenvalues"].values, expected.values, rtol=1e-6, atol=0)
        assert found["trace"].estimate == pytest.approx(trace(operator, 4).estimate, rel=1e-9)
        assert found["lpf"].estimate == pytest.approx(low_pass_filter(model, cross_entropy, data, samples=3).estimate)
        assert found["lpf"].settings["samples"] == 300
        assert "density" not in found
    curve = measure_curve(run, settings=SETTINGS)
    assert list(curve) == [2, 4]
    assert curve[4].estimate == found["lpf"].estimate


def test_a_part_of_the_images_is_fixed_and_a_part_of_a_larger_one(runs: Path) -> None:
    run = one(runs)
    model, [(images, labels)] = by_hand(run)
    with torch.no_grad():
        losses = cross_entropy(model.eval()(images), labels, reduction="none")

    def loss(samples: int, seed: int = 0) -> float:
        settings = FlatnessSettings(samples=samples, subset_seed=seed, eigenvalues=0, trace_samples=0, lpf_samples=2)
        return float(measure_run(run, settings=settings)["lpf"].loss)

    assert loss(300) == pytest.approx(float(losses.mean()))
    first, rest = 2 * loss(2) - loss(1), loss(1)
    for value in (first, rest):  # both are losses of single training images
        assert float((losses - value).abs().min()) < 1e-9
    assert loss(30) != pytest.approx(loss(300))
    assert loss(30) != pytest.approx(loss(30, seed=1))


def test_a_result_is_measured_once_and_a_changed_question_anew(runs: Path) -> None:
    run, began = one(runs), Began()
    first = measure_run(run, settings=SETTINGS, progress=began)
    assert began == ["epoch 4, eigenvalues", "epoch 4, trace", "epoch 4, lpf"]
    files = {path: path.stat().st_mtime_ns for path in (run.path / "flatness").iterdir()}
    again = measure_run(run, settings=SETTINGS, progress=began)
    assert len(began) == 3
    assert files == {path: path.stat().st_mtime_ns for path in (run.path / "flatness").iterdir()}
    assert torch.equal(first["eigenvalues"].values, again["eigenvalues"].values)
    assert first["trace"].estimate == again["trace"].estimate

    changes = {
        "samples": (200, {"eigenvalues", "trace", "lpf"}),
        "batch_size": (70, {"eigenvalues", "trace", "lpf"}),
        "subset_seed": (1, {"eigenvalues", "trace", "lpf"}),
        "mode": ("train", {"eigenvalues", "trace", "lpf"}),
        "seed": (1, {"eigenvalues", "trace", "lpf"}),
        "eigenvalues": (2, {"eigenvalues"}),
        "tolerance": (1e-2, {"eigenvalues"}),
        "trace_samples": (5, {"trace"}),
        "lpf_sigma": (0.02, {"lpf"}),
        "lpf_samples": (4, {"lpf"}),
    }
    for name, (value, affected) in changes.items():
        began.clear()
        measure_run(run, settings=dataclasses.replace(SETTINGS, **{name: value}), progress=began)
        assert {text.rpartition(" ")[2] for text in began} == affected, name


def test_other_weights_are_another_question(runs: Path) -> None:
    run, began = one(runs), Began()
    before = measure_run(run, settings=SETTINGS, progress=began)
    newest = checkpoints.listed(run.checkpoints)[-1]
    weights = {name: 1.5 * value if value.ndim > 1 else value for name, value in newest.weights().items()}
    checkpoints.save(run.checkpoints, epoch=4, step=newest.step, batch=0, weights=weights, state=newest.state())
    after = measure_run(run, settings=SETTINGS, progress=began)
    assert len(began) == 6
    assert after["lpf"].loss != pytest.approx(before["lpf"].loss)


def test_a_checkpoint_that_was_not_kept_is_named_with_those_that_were(
    runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for command in (["flatness", str(runs), "--epochs", "4", "3"], ["landscape", str(runs), "--epoch", "3"]):
        assert main([*command, "-o", str(tmp_path / "figures")]) == 2
        error = capsys.readouterr().err
        assert "no checkpoint after 3 epochs; it has those after 2, 4" in error
        assert "record.keep_epochs=3" in error
    assert not list(runs.glob("*/flatness"))  # refused before anything was measured


def test_settings_that_cannot_be_meant() -> None:
    for wrong in ({"samples": 0}, {"trace_samples": 1}, {"lpf_samples": 1}, {"eigenvalues": -1}):
        ((name, value),) = wrong.items()
        with pytest.raises(ValueError, match=rf"{name} must be at least .*{value}"):
            FlatnessSettings(**wrong)
    with pytest.raises(ValueError, match="span must be positive"):
        LandscapeSettings(span=0.0)


def test_the_command_prints_means_over_seeds_and_draws(
    runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures = tmp_path / "figures"
    options = ["--eigenvalues", "3", "--trace-samples", "4", "--lpf-samples", "3", "--batch-size", "100"]
    assert main(["flatness", str(runs), "--epochs", "2", "4", *options, "-o", str(figures)]) == 0
    shown = capsys.readouterr().out
    results = [measure_run(one(runs, seed=seed), settings=SETTINGS) for seed in (0, 1)]
    traces = [result["trace"].estimate for result in results]
    assert f"| {statistics.fmean(traces):.4g} ± {statistics.stdev(traces):.2g} |" in shown
    assert "| SGD | 2 | 1 |" in shown
    assert "| LE-SAM | 4 | 2 |" in shown
    assert "LE-SAM, seed 1, epoch 4, eigenvalues: done in" in shown
    assert {path.name for path in figures.iterdir()} == {"spectrum.png", "spectrum.pdf", "low-pass.png", "low-pass.pdf"}
    assert main(["flatness", str(runs), "--epochs", "2", "4", *options, "-o", str(figures)]) == 0
    assert "done in" not in capsys.readouterr().out


def test_what_is_not_asked_for_is_neither_measured_nor_drawn(runs: Path, tmp_path: Path) -> None:
    run, figures = one(runs), tmp_path / "figures"
    options = ["--eigenvalues", "0", "--trace-samples", "0", "--lpf-samples", "0", "--density", "--samples", "20"]
    assert main(["flatness", str(run.path), *options, "-o", str(figures)]) == 0
    assert [path.name.split("-")[2] for path in (run.path / "flatness").iterdir()] == ["density"]
    assert {path.name for path in figures.iterdir()} == {"density.png", "density.pdf"}


def test_eigenvalues_that_did_not_converge_are_said(runs: Path) -> None:
    result = measure_run(one(runs), settings=FlatnessSettings(eigenvalues=3, trace_samples=0, lpf_samples=0))
    assert "converge" not in table.notes(Survey(results={"LE-SAM": {4: [result]}}))
    flags = torch.tensor([True, False, True])
    spectrum = dataclasses.replace(result["eigenvalues"], converged=flags)
    doubtful = dataclasses.replace(result, found={"eigenvalues": spectrum})
    assert "1 of 6 eigenvalues did not converge" in table.notes(Survey(results={"LE-SAM": {4: [result, doubtful]}}))
