"""A setting that is refused leaves no folder behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from lesam.lab.cli import main
from lesam.lab.runs.folder import RunFolder
from lesam.lab.training.loop import train
from lesam.lab.training.reporter import Silent
from tests.lab.running import smoke


@pytest.mark.parametrize(
    ("method", "change", "complaint"),
    [
        ("lesam", "optimizer.sigma=-1", r"optimizer\.sigma must be a number >= 0, got -1"),
        ("sam", "optimizer.rho=nan", r"optimizer\.rho must be a finite number, got nan"),
        ("sam", "optimizer.rho=inf", r"optimizer\.rho must be a finite number, got inf"),
        ("sgd", "optimizer.lr=inf", r"optimizer\.lr must be a finite number, got inf"),
        ("sgd", "optimizer.lr=0", r"optimizer\.lr must be above 0, got 0\.0"),
        ("sgd", "optimizer.momentum=1.5", r"optimizer\.momentum must lie in \[0, 1\), got 1\.5"),
        ("sgd", "optimizer.weight_decay=-1", r"optimizer\.weight_decay must not be negative, got -1\.0"),
        ("sgd", "optimizer.max_norm=-1", r"optimizer\.max_norm must be above 0, got -1\.0; none does not clip"),
        ("adam", "optimizer.nesterov=true", r"has no effect on adam"),
        ("sgd", "schedule.lr_gamma=0", r"schedule\.lr_gamma must be above 0, got 0\.0"),
        ("sgd", "schedule.lr_gamma=-0.1", r"schedule\.lr_gamma must be above 0, got -0\.1"),
        ("sgd", "schedule.lr_warmup=5", r"schedule\.lr_warmup=5 lies beyond the end of the run, which has 2 epochs"),
        ("sgd", "schedule.lr_per=step schedule.lr_warmup=7", r"schedule\.lr_warmup=7 .* which has 6 steps"),
        ("lesam", "schedule.budget_warmup=5", r"schedule\.budget_warmup=5 .* which has 2 epochs"),
        ("lesam", "schedule.budget_anneal_start=3", r"schedule\.budget_anneal_start=3 .* which has 2 epochs"),
        ("sgd", "schedule.lr=multistep schedule.lr_milestones=1,3", r"schedule\.lr_milestones=3 .* has 2 epochs"),
        ("sgd", "schedule.lr=multistep schedule.lr_milestones=-1", r"schedule\.lr_milestones must be above 0, got -1"),
        ("sgd", "schedule.lr_milestones=1", r"schedule\.lr_milestones=1 has no effect with schedule\.lr=cosine"),
        ("sgd", "schedule.steps=7", r"schedule\.steps=7 is more than the 6 steps of schedule\.epochs=2"),
        ("sgd", "record.checkpoint_steps=0", r"record\.checkpoint_steps must be at least 1 or None, got 0"),
        ("sgd", "record.keep_epochs=3", r"record\.keep_epochs must lie in 1\.\.2 .* got 3"),
        ("sgd", "record.wandb=", r"record\.wandb names a project"),
        ("sgd", "record.mlflow=", r"record\.mlflow names a project"),
        ("sgd", "system.nodes=0", r"system\.nodes must be at least 1, got 0"),
        ("sgd", "system.accelerator=tpu", r"system\.accelerator must be one of .* got tpu"),
        ("sgd", "system.precision=16-mixed", r"system\.precision=16-mixed needs a GPU"),
        ("sgd", "data.options.train_size=many", r"data\.options\.train_size must be of type int \| None, got 'many'"),
        ("sgd", "model.options.width=wide", r"model\.options\.width must be of type int, got 'wide'"),
        ("sgd", "model.name=resnet18", r"model\.name=resnet18 .* cannot take images of 1 channels and 8 x 8 pixels"),
    ],
)
def test_a_refused_setting_leaves_nothing_behind(method: str, change: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=complaint):
        train(
            smoke("digits", "system.accelerator=cpu", *change.split(), method=method), runs=tmp_path, progress=Silent()
        )
    assert not list(tmp_path.iterdir())


def test_a_folder_of_an_earlier_version_with_such_a_setting_stays_readable(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.create(smoke("digits", "schedule.lr_warmup=5"), {})
    assert folder.config().schedule.lr_warmup == 5


def test_a_command_refuses_before_it_shows_or_trains_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change = ["--set", "schedule.lr_gamma=0"]
    for command in (
        ["train", "digits", "--scale", "smoke", "--dry-run"],
        ["sweep", "digits", "--scale", "smoke", "--grid", "optimizer.sigma=0.1,0.2", "--runs", str(tmp_path)],
        ["reproduce", "radius", "--scale", "smoke", "-o", str(tmp_path)],
    ):
        assert main([*command, *change]) == 2, command
        captured = capsys.readouterr()
        assert "schedule.lr_gamma must be above 0, got 0.0" in captured.err
        assert not captured.out
    assert not list(tmp_path.iterdir())
    for command, complaint in (
        (["sweep", "digits", "--grid", "optimizer.sigma=-0.1,much", "--runs"], "must be of type float, got 'much'"),
        (
            ["sweep", "digits", "--grid", "optimizer.sigma=0.1", "--threads", "0", "--runs"],
            "threads must be at least 1",
        ),
        (["sweep", "digits", "--search", "optimizer.lr=0,1", "--runs"], "optimizer.lr must be above 0"),
        (
            ["sweep", "digits", "--search", "optimizer.lr=0.1,1", "--trials", "0", "--runs"],
            "--trials must be at least 1",
        ),
        (["compare", "--jobs", "0", "-o"], "jobs must be at least 1"),
        (["compare", "--seeds", "1000", "-o"], "seed 1000 chooses the settings"),
    ):
        assert main([*command, str(tmp_path / "none"), "--scale", "smoke"]) == 2
        assert complaint in capsys.readouterr().err
        assert not (tmp_path / "none").exists(), command
    assert main(["train", "digits", "--method", "sgd", "--scale", "smoke", "--switch-at", "1"]) == 2
    assert "sgd is one itself" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "change", "complaint"),
    [
        ("vit-cifar10", "schedule.steps=1", r"schedule\.lr_warmup=2 lies beyond the end of the run, which has 1 steps"),
        ("pacs-photo", "schedule.steps=4", r"task\.warm_start=4 leaves none of the 4 steps"),
        ("pacs-photo", "schedule.steps=9", r"task\.average_from=10 is after the end of a run of 9 steps"),
    ],
)
def test_a_length_that_leaves_its_dependants_behind_is_refused(
    recipe: str, change: str, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=complaint):
        train(smoke(recipe, change, "system.accelerator=cpu", method="adam"), runs=tmp_path, progress=Silent())
    assert not list(tmp_path.iterdir())
