"""Checkpoints that experiments read: kept when asked for, said when a run that was there already lacks them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from lesam.lab import paper
from lesam.lab.cli import main
from lesam.lab.paper.experiment import Request

LONGER = ("--scale", "smoke", "--set", "schedule.epochs=6")
"""Epochs 2, 4, 5 and 6 are kept by the recipe; the mechanism reads all six."""


def test_a_run_that_lacks_epochs_is_said_with_the_command_that_trains_it_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = ["--runs", str(tmp_path / "runs")]
    assert main(["train", "cifar100-resnet18", "--method", "sam", *LONGER, *runs]) == 0
    experiment = ["reproduce", "mechanism", "--methods", "sam", *LONGER, "-o", str(tmp_path), *runs]
    capsys.readouterr()
    assert main([*experiment, "--plan"]) == 0
    (planned,) = (line for line in capsys.readouterr().out.splitlines() if "lacks those after 1, 3)" in line)
    assert main(experiment) == 0
    assert planned.removeprefix("# ") in capsys.readouterr().out.splitlines(), "before it measures"
    table = (tmp_path / "mechanism" / "smoke" / "table.md").read_text()
    assert planned.removeprefix("# ") in table.splitlines()
    assert main(shlex.split(planned.partition("all of them: lesam ")[2])) == 0
    capsys.readouterr()
    assert main([*experiment, "--plan"]) == 0
    assert "lacks those" not in capsys.readouterr().out


def test_runs_keep_for_other_experiments_when_asked() -> None:
    alone = Request(scale="paper", seeds=(0,), runs=Path("runs"))
    asked = Request(scale="paper", seeds=(0,), runs=Path("runs"), keep_for=("flatness", "mechanism"), methods=("sam",))
    cifar = paper.find("cifar")
    usual = {run.config.folder_name: run.config.record.keep_epochs for run in paper.plan(cifar, alone)}
    kept = {run.config.folder_name: run.config.record.keep_epochs for run in paper.plan(cifar, asked)}
    assert kept.keys() < usual.keys(), "what is kept is no part of a run's identity"
    more = {name for name in kept if kept[name] != usual[name]}
    assert {name.partition("-paper-")[0] for name in more} == {"cifar100-resnet18"}
    assert all(kept[name] == pytest.approx([part / 20 for part in range(1, 21)]) for name in more)
