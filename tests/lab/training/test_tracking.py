"""Flatness recorded while a run trains: the library's numbers, no trace in the weights, a bounded share of the time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.nn.functional import cross_entropy

from lesam.flatness import HessianOperator, low_pass_filter, top_eigenvalues, trace
from lesam.lab import models, recipes
from lesam.lab.cli import main
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.data import load
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs.folder import RunFolder
from lesam.lab.training.loop import train
from tests.lab.running import BreakOff, Listener, assert_equal, last_checkpoint, timeless, trained

EVERYTHING = "record.track=lpf,trace,eigenvalue"
UNBOUNDED = "record.track_share=1"
NEVER_AGAIN = "record.track_share=1e-12"


def config_of(*changes: str, recipe: str = "digits", method: str = "lesam") -> RunConfig:
    common = ("system.accelerator=cpu", "schedule.epochs=2")
    return override(recipes.build(recipe, method=method, scale="smoke"), [*common, *changes])


def measured(folder: RunFolder) -> list[int]:
    return [row["epoch"] + 1 for row in folder.metrics() if row.get("track_seconds") is not None]


# Augmentation, BatchNorm and channels-last memory; a method with random masks; one with a memory of its own.
@pytest.mark.parametrize(
    ("recipe", "method"), [("cifar100-resnet18", "lesam"), ("digits", "esam"), ("digits", "friendlysam")]
)
def test_tracking_leaves_no_trace_in_the_run(recipe: str, method: str, tmp_path: Path) -> None:
    plain = trained(config_of(recipe=recipe, method=method), tmp_path / "plain")
    tracked = trained(config_of(EVERYTHING, UNBOUNDED, recipe=recipe, method=method), tmp_path / "tracked")
    assert plain.path.name == tracked.path.name
    assert measured(tracked) == [1, 2]
    ours, theirs = (last_checkpoint(folder) for folder in (plain, tracked))
    assert_equal(ours.weights(), theirs.weights())
    assert str(ours.state()["optimizer"]) == str(theirs.state()["optimizer"])
    for row, other in zip(timeless(plain.metrics()), timeless(tracked.metrics()), strict=True):
        assert row == {name: other[name] for name in row}
    columns = tracked.metrics()[0].keys() - plain.metrics()[0].keys()
    assert columns == {*("lpf", "lpf_stderr", "lpf_excess", "trace", "trace_stderr", "eigenvalue", "track_seconds")}


def test_the_values_are_the_librarys_on_the_epochs_weights(tmp_path: Path) -> None:
    changes = (EVERYTHING, UNBOUNDED, "record.keep_epochs=1", "system.precision=64-true", "model.options.width=3")
    folder = trained(config_of(*changes), tmp_path)
    data = load("digits", **folder.config().data.options).train
    batches = [((data.images.double() / 255 - 0.3053) / 0.3759, data.labels)]
    for row, checkpoint in zip(folder.metrics(), checkpoints.listed(folder.checkpoints), strict=True):
        model = models.build("digits_cnn", 10, width=3).double()
        model.load_state_dict(checkpoint.weights())
        filtered = low_pass_filter(model, cross_entropy, batches, sigma=0.01, samples=20)
        assert row["lpf"] == pytest.approx(filtered.estimate, rel=1e-9)
        assert row["lpf_excess"] == pytest.approx(filtered.excess, rel=1e-6)
        operator = HessianOperator(model, cross_entropy, batches)
        estimate = trace(operator, 20)
        assert row["trace"] == pytest.approx(estimate.estimate, rel=1e-9)
        assert row["trace_stderr"] == pytest.approx(estimate.stderr, rel=1e-9)
        assert row["eigenvalue"] == pytest.approx(float(top_eigenvalues(operator, 1).values[0]), rel=1e-5)


def test_every_so_many_epochs_and_at_the_end(tmp_path: Path) -> None:
    changes = ("schedule.epochs=5", "record.track=lpf", "record.track_every=2", UNBOUNDED)
    assert measured(trained(config_of(*changes), tmp_path)) == [2, 4, 5]


def test_a_measurement_that_takes_too_long_is_put_off(tmp_path: Path) -> None:
    folder = trained(config_of("schedule.epochs=5", "record.track=lpf", "record.track_every=2", NEVER_AGAIN), tmp_path)
    assert measured(folder) == [2]  # the first one: how long it takes is not known before


@pytest.mark.parametrize(("share", "expected"), [(NEVER_AGAIN, [2]), (UNBOUNDED, [2, 4])])
def test_a_resumed_run_knows_what_was_measured(share: str, expected: list[int], tmp_path: Path) -> None:
    changes = ("schedule.epochs=4", "record.track=lpf", "record.track_every=2", "record.checkpoint_every=1", share)
    with pytest.raises(ConnectionError):
        train(config_of(*changes), runs=tmp_path, progress=BreakOff(epochs=3))
    assert measured(trained(config_of(*changes), tmp_path)) == expected


def test_a_diverged_network_is_no_reason_to_stop(tmp_path: Path) -> None:
    listener = Listener()
    folder = trained(config_of("optimizer.lr=1e30", EVERYTHING, UNBOUNDED, method="sgd"), tmp_path, listener)
    assert len(folder.metrics()) == 2
    assert folder.metrics()[-1].get("lpf") is None
    assert any("not measured: the loss is" in text for text in listener.messages)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("record.track=lfp", "did you mean 'lpf'"),
        ("record.track_share=0", r"track_share must lie in \(0, 1\], got 0"),
        ("record.track_every=0", "track_every must be at least 1, got 0"),
        ("system.strategy=fsdp", "needs the whole network on every worker.* `lesam flatness`"),
    ],
)
def test_settings_that_cannot_be_meant(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_of("record.track=lpf", setting)


def test_train_tracks_and_plot_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["train", "digits", "--scale", "smoke", "--accelerator", "cpu"]
    assert main([*command, "--method", "sgd"]) == 0
    assert main(["plot", "flatness", "runs"]) == 2
    assert "train with --track" in capsys.readouterr().err
    assert main([*command, "--method", "sam", "--track", "lpf,eigenvalue", "--track-every", "2"]) == 0
    (row,) = [row for path in Path("runs").glob("*-sam-*") for row in RunFolder(path).metrics() if "lpf" in row]
    assert row["epoch"] == 1
    assert row["eigenvalue"] is not None
    assert "trace" not in row
    assert main(["plot", "flatness", "runs", "-o", "flatness.png"]) == 0
    assert Path("flatness.png").read_bytes().startswith(b"\x89PNG")


def two_processes(runs: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("-m", "lesam", "train", "digits", "--scale", "smoke"),
            *("--accelerator", "cpu", "-o", str(runs), "--track", "lpf", "--set", UNBOUNDED),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_two_workers_measure_the_whole_subset(tmp_path: Path) -> None:
    result = two_processes(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = tmp_path.iterdir()
    folder = RunFolder(path)
    assert measured(folder) == [1, 2]
    data = load("digits", **folder.config().data.options).train
    model = models.build("digits_cnn", 10, width=8)
    model.load_state_dict(checkpoints.listed(folder.checkpoints)[-1].weights())
    expected = low_pass_filter(
        model, cross_entropy, [((data.images.float() / 255 - 0.3053) / 0.3759, data.labels)], samples=20
    )
    assert expected.settings["samples"] == 300
    assert folder.metrics()[-1]["lpf"] == pytest.approx(expected.estimate, rel=1e-5)
