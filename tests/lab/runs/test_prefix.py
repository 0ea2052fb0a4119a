"""A late switch that begins from a relative's checkpoint is the run it would have been alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lesam.lab import recipes
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.prefix import prefix, start_from_relative
from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Silent

LATE = ["schedule.epochs=3", "schedule.switch_at=2", "record.keep_epochs=2", "record.keep=1"]


def late(method: str, *changes: str, seed: int = 0) -> RunConfig:
    return override(recipes.build("digits", method=method, scale="smoke", seed=seed), [*LATE, *changes])


def weights(run: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(sorted(run.checkpoints.glob("*/weights.safetensors"))[-1])


@pytest.mark.parametrize("method", ["lesam", "friendlysam", "eigensam"])
def test_a_forked_run_ends_in_the_weights_of_one_that_went_all_the_way(method: str, tmp_path: Path) -> None:
    config = late(method)
    alone = RunFolder(tmp_path / "alone" / train(config, runs=tmp_path / "alone", progress=Silent())["folder"])
    shared = tmp_path / "shared"
    train(late("sam"), runs=shared, progress=Silent())
    forked = RunFolder(shared / train(config, runs=shared, progress=Silent())["folder"])
    assert (forked.path / "origin.json").exists()
    assert not (alone.path / "origin.json").exists()
    for name, value in weights(alone).items():
        assert torch.equal(value, weights(forked)[name]), name
    columns = ("train_loss", "test_accuracy", "rho", "sigma", "lr")
    for theirs, ours in zip(alone.metrics(), forked.metrics(), strict=True):
        assert [ours.get(name) for name in columns] == [theirs.get(name) for name in columns]


@pytest.mark.parametrize(
    "other",
    [
        late("sam", seed=1),
        late("sam", "optimizer.lr=0.2"),
        late("sam", "data.batch_size=50"),
        late("sam", "schedule.switch_at=1", "record.keep_epochs=1,2"),
        override(recipes.build("digits", method="sam", scale="smoke"), ["schedule.epochs=3", "record.keep_epochs=2"]),
    ],
)
def test_only_a_run_with_the_same_beginning_is_a_relative(other: RunConfig, tmp_path: Path) -> None:
    train(other, runs=tmp_path, progress=Silent())
    assert start_from_relative(late("lesam"), tmp_path) is None


def test_settings_of_the_method_do_not_matter_before_the_switch() -> None:
    assert prefix(late("sam")) == prefix(late("lesam")) == prefix(late("lesam", "optimizer.sigma=0.7"))
    assert prefix(late("lesam", "schedule.budget_anneal_start=none")) == prefix(late("lesam"))
    assert prefix(recipes.build("digits", method="lesam", scale="smoke")) is None
