"""Checkpoints: whole or absent, kept where asked for."""

from __future__ import annotations

from pathlib import Path

import torch

from lesam.lab import recipes
from lesam.lab.config.text import override
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs.folder import RunFolder
from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Silent


def test_a_half_written_checkpoint_is_not_one(tmp_path: Path) -> None:
    (tmp_path / ".step-00000004.123.tmp").mkdir()
    (tmp_path / "step-00000002").mkdir()
    found, complaints = checkpoints.newest_valid(tmp_path)
    assert found is None
    assert "step-00000002" in complaints[0]


def test_checkpoints_of_chosen_epochs_stay(tmp_path: Path) -> None:
    changes = ["schedule.epochs=6", "record.keep=1", "record.keep_epochs=2,3", "record.checkpoint_every=6"]
    config = override(recipes.build("digits", method="sgd", scale="smoke"), changes)
    train(config, runs=tmp_path, progress=Silent())
    kept = checkpoints.listed(RunFolder.of(config, tmp_path).checkpoints)
    assert [item.epoch for item in kept] == [2, 3, 6]
    assert torch.load(kept[0].path / "state.pt", weights_only=True)["optimizer"]["param_groups"]


def test_kept_epochs_may_be_fractions_of_the_length(tmp_path: Path) -> None:
    changes = ["schedule.epochs=6", "record.keep=1", "record.keep_epochs=0.5,5", "record.checkpoint_every=6"]
    config = override(recipes.build("digits", method="sgd", scale="smoke"), changes)
    train(config, runs=tmp_path, progress=Silent())
    assert sorted(checkpoints.epoch_ends(RunFolder.of(config, tmp_path).checkpoints)) == [3, 5, 6]


def test_minutes_put_off_checkpoints_but_not_kept_ones_and_not_the_last(tmp_path: Path) -> None:
    changes = ["schedule.epochs=4", "record.keep=20", "record.keep_epochs=2", "record.checkpoint_every=1"]
    config = override(recipes.build("digits", method="sgd", scale="smoke"), changes)
    for minutes, expected in (("1e4", [2, 4]), ("1e-9", [1, 2, 3, 4])):
        run = override(config, [f"record.checkpoint_minutes={minutes}"])
        train(run, runs=tmp_path / minutes, progress=Silent())
        folder = RunFolder.of(run, tmp_path / minutes).checkpoints
        assert sorted(checkpoints.epoch_ends(folder)) == expected
        inside = [checkpoint.batch for checkpoint in checkpoints.listed(folder) if checkpoint.batch]
        assert inside == ([1, 2] * 4 if minutes == "1e-9" else []), "an epoch may last hours"


def test_the_papers_scale_writes_by_the_clock_and_keeps_little() -> None:
    for recipe in recipes.names():
        record = recipes.build(recipe, method="lesam", scale="paper").record
        own = ("digits", "mnist1d-", "cifar100-pretraining", "cifar100-finetuning")
        if not recipe.startswith(own):  # whose paper's scale is their small one
            assert (record.checkpoint_minutes, record.checkpoint_steps) == (10.0, None), recipe
            assert len(record.keep_epochs) <= 2, recipe


def test_table_1_keeps_what_is_read() -> None:
    for method in ("sgd", "lesam"):
        assert len(recipes.build("cifar100-resnet18", method=method, scale="paper").record.keep_epochs) == 2
