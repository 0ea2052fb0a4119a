"""A plan: commands that train exactly the runs of an experiment, with time and disk, before anything starts."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lesam.lab import models, paper, recipes
from lesam.lab.cli import main
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import from_json, override
from lesam.lab.paper import planning
from lesam.lab.paper.experiment import Request
from lesam.lab.paper.scales import anything_left
from lesam.lab.runs.folder import RunFolder
from lesam.lab.training.layout import laid_out
from tests.lab.running import last_checkpoint, smoke, trained


def request(runs: Path, **changes: Any) -> Request:
    return Request(**{"scale": "smoke", "seeds": (0,), "runs": runs, **changes})


def trained_by(command: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """The run that a printed command trains."""
    words = shlex.split(command, comments=True)
    assert words[0] == "lesam"
    capsys.readouterr()
    assert main([*words[1:], "--dry-run"]) == 0
    return from_json(capsys.readouterr().out)


@pytest.mark.parametrize("name", paper.NAMES)
def test_every_experiment_at_the_papers_scale_is_planned_without_data(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LESAM_DATA", str(tmp_path / "none"))
    arguments = ["reproduce", name, "--plan", "--scale", "paper", "--seeds", "0", "-o", str(tmp_path / "out dir")]
    assert main([*arguments, "--set", "record.steps_every=7"]) == 0
    commands = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert not list(tmp_path.iterdir())
    asked = request(tmp_path / "out dir" / "runs", scale="paper", changes=("record.steps_every=7",))
    planned = {run.config.folder_name: run.config for run in paper.find(name).plan(asked)}
    assert len(commands) == len(planned) + 1
    assert shlex.split(commands[-1], comments=True)[:3] == ["lesam", "reproduce", name]
    for command in commands[:-1]:
        assert re.search(r"  # about [\d.]+ (s|min|h|days) \(counted\), [\d.]+ (kB|MB|GB|TB)$", command)
    for command in {commands[0], commands[-2]} if planned else ():  # the configuration, with what is no identity
        found = trained_by(command, capsys)
        assert found == planned[found.folder_name]


def test_the_array_of_the_page_about_many_machines_is_that_of_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "many-machines.md").read_text()
    (array,) = re.findall(r"^sbatch --array=(\S+) ", page, re.MULTILINE)
    (command,) = re.findall(r"^lesam (reproduce .*) -o /shared/paper --report-only$", page, re.MULTILINE)
    assert main([*command.split(), "--plan", "-o", str(tmp_path)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "sbatch" in line]
    assert f"sbatch --array={array} --requeue --signal=USR1@90 --wrap 'srun lesam reproduce " in line
    assert "--task $SLURM_ARRAY_TASK_ID', and then lesam reproduce " in line


def test_a_planned_command_trains_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reproduce", "radius", "--plan", "--scale", "smoke", "-o", str(tmp_path)]
    assert main(arguments) == 0
    first, *rest = (line for line in capsys.readouterr().out.splitlines() if line.startswith("lesam train"))
    assert main(shlex.split(first, comments=True)[1:]) == 0
    capsys.readouterr()
    assert main(arguments) == 0
    left = [line for line in capsys.readouterr().out.splitlines() if line.startswith("lesam train")]
    assert [line.split("  #")[0] for line in left] == [line.split("  #")[0] for line in rest]


def test_runs_of_several_processes_are_found_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What two processes have trained is not missing; whether it is read depends on how the experiment is started."""
    runs, radius = tmp_path / "runs", paper.find("radius")
    planned = [run.config for run in radius.plan(request(runs))]
    for config in planned[:2]:
        trained = laid_out(config, 2)
        assert trained.folder_name != config.folder_name
        folder = RunFolder.of(trained, runs)
        folder.create(trained, {})
        folder.finish({"folder": folder.path.name, "last": {}})
    arguments = ["reproduce", "radius", "--plan", "--scale", "smoke", "-o", str(tmp_path)]
    said = {}
    for devices in ("1", "2"):
        assert main([*arguments, "--set", f"system.devices={devices}"]) == 0
        said[devices] = capsys.readouterr().out
        assert f"{len(planned)} runs, {len(planned) - 2} of them to be trained" in said[devices]
        assert said[devices].count("lesam train") == len(planned) - 2
    assert "another number of processes than asked for here: 2 by 2 processes." in said["1"]
    assert "another number" not in said["2"]
    assert main(["reproduce", "--list", "--scale", "smoke", "-o", str(tmp_path)]) == 0
    listed = dict(line.split("\t")[::2] for line in capsys.readouterr().out.splitlines() if "\t" in line)
    assert listed["radius"] == f"2 of {len(planned)} runs finished, 2 by 2 processes"


def test_disk_is_weights_and_momentum_of_every_checkpoint_that_stays(tmp_path: Path) -> None:
    run = paper.find("cifar").plan(request(tmp_path, scale="paper"))[0].config
    weights = sum(weight.numel() for weight in models.build("resnet18", 10).parameters())
    kept = len(run.record.keep_epochs) + run.record.keep
    assert planning.estimate(run, tmp_path).size == pytest.approx(kept * 2 * 4 * weights)


def done(config: RunConfig, runs: Path, *, seconds: float, steps: int) -> None:
    folder = RunFolder.of(config, runs)
    folder.create(config, {})
    folder.finish({"folder": folder.path.name, "last": {"step": steps}, "seconds": seconds})


def test_times_are_those_of_finished_runs_and_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """391 steps of 200 epochs: SGD's pass takes 10 ms, SAM's run says more than twice that."""
    sgd, sam = (recipes.build("cifar10-resnet18", method=name, scale="paper") for name in ("sgd", "sam"))
    counted = planning.estimate(sam, tmp_path)
    assert counted.basis == "counted"
    done(replace(sgd, seed=5), tmp_path, seconds=10.0, steps=1000)
    by_passes = planning.estimate(sam, tmp_path)
    assert by_passes.seconds == pytest.approx(200 * 391 * 2 * 0.01)
    assert by_passes.basis == "measured on SGD by passes a step"
    for seed, seconds in ((5, 24.0), (6, 25.0), (7, 90.0)):  # the machine was busy once
        done(replace(sam, seed=seed), tmp_path, seconds=seconds, steps=1000)
    own = planning.estimate(sam, tmp_path)
    assert own.seconds == pytest.approx(200 * 391 * 0.025)
    assert own.basis == "measured on 3 of SAM"
    done(replace(override(sam, ["data.batch_size=64"]), seed=8), tmp_path, seconds=1e9, steps=1)
    assert planning.estimate(sam, tmp_path) == own, "another batch size takes another time"
    assert main(["reproduce", "cifar", "--plan", "--scale", "paper", "--seeds", "0", "--runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(line for line in lines if "cifar10-resnet18 --method sam" in line)
    assert "(measured on 3 of SAM)" in first
    assert lines[-3] == "# 35 of the times are counted, not measured: right to a factor of two or three"


def test_two_passes_take_twice_as_long_as_one(tmp_path: Path) -> None:
    plans = {run.row: run.config for run in paper.find("cifar").plan(request(tmp_path, scale="paper"))}
    seconds = {row: planning.estimate(config, tmp_path).seconds for row, config in plans.items()}
    assert seconds["SAM"] == pytest.approx(2 * seconds["SGD"])


@pytest.mark.parametrize(
    ("method", "changes", "passes"),
    [
        ("sam", [], 2),
        ("sam", ["schedule.every=4"], 1.25),
        ("sam", ["schedule.switch_at=35"], 1.3),
        ("looksam", ["optimizer.every=5"], 1.2),
        ("aesam", [], 1.5),
        ("onepasslesam", ["schedule.every=4"], 1),
        ("partiallesam", [], 1.1),
        ("partiallesam", ["optimizer.share=0.2", "schedule.every=4"], 1.05),
        ("crsam", ["schedule.every=2"], 2),
    ],
)
def test_a_plan_counts_the_passes_that_a_method_saves(method: str, changes: list[str], passes: float) -> None:
    config = override(recipes.build("digits", method=method, scale="small"), changes)
    assert planning._passes(config) == pytest.approx(passes)


def test_a_method_now_and_then_is_not_timed_by_one_at_every_step(tmp_path: Path) -> None:
    sam = recipes.build("digits", method="sam", scale="small")
    done(replace(sam, seed=5), tmp_path, seconds=20.0, steps=1000)
    seldom = planning.estimate(override(sam, ["schedule.every=4"]), tmp_path)
    assert seldom.basis == "measured on SAM by passes a step"
    assert seldom.seconds == pytest.approx(planning.estimate(sam, tmp_path).seconds * 1.25 / 2)


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_every_experiment_can_be_planned(scale: str, tmp_path: Path) -> None:
    for experiment in filter(lambda known: anything_left(known, scale), map(paper.find, paper.NAMES)):
        request = Request(scale=scale, runs=tmp_path / "runs").of(experiment)
        planned = [run for run in paper.plan(experiment, request)][:: 40 if scale != "smoke" else 20]
        for line in planning.lines(experiment, request, tmp_path, planned):
            assert line


def test_a_run_that_starts_from_a_run_is_planned_by_its_file(tmp_path: Path) -> None:
    """The command names the weights where they lie, and gives the same run and the same group."""
    origin = trained(smoke("cifar100-pretraining"), tmp_path)
    config = smoke("cifar100-finetuning", f"model.options.weights={origin.path}")
    words = shlex.split(planning.command(config, tmp_path))
    changes = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    assert changes == [f"model.options.weights={last_checkpoint(origin).path / 'weights.safetensors'}"]
    assert smoke("cifar100-finetuning", *changes) == config


def test_some_classes_have_their_share_of_the_steps(tmp_path: Path) -> None:
    whole = recipes.build("cifar100-pretraining", method="sgd", scale="small")
    measured = planning.estimate(whole, tmp_path)
    fewer = planning.estimate(override(whole, ["data.options.only_classes=0-29"]), tmp_path)
    assert measured.seconds == pytest.approx(2 * fewer.seconds, rel=0.1)
