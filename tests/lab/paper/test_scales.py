"""Recipes without a scale are left out by name, said with the reason; what has nothing left is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lesam.lab import paper, recipes
from lesam.lab.cli import main
from lesam.lab.paper import scales
from lesam.lab.paper.experiment import Request
from lesam.lab.paper.experiments import cost
from lesam.lab.recipes import cifar

LEFT_OUT = {
    "cifar": ["cifar10-wrn", "cifar10-pyramid", "cifar100-wrn", "cifar100-pyramid"],
    "cifar-tuned": ["cifar10-wrn", "cifar10-pyramid", "cifar100-wrn", "cifar100-pyramid"],
    "lesam-plus": ["cifar100-wrn", "cifar100-pyramid"],
    "cost": ["cifar100-wrn", "cifar100-pyramid"],
}
NOTHING_LEFT = {
    "imagenet": ["imagenet-resnet50", "imagenet-resnet101"],
    "vit-finetune": ["vit-cifar10", "vit-cifar100"],
}


def request(runs: Path, **changes: Any) -> Request:
    return Request(**{"scale": "small", "seeds": (0,), "runs": runs, **changes})


@pytest.mark.parametrize("name", [*paper.NAMES, "cifar-tuned"])
def test_a_plan_holds_the_recipes_that_have_the_scale_and_says_which_have_not(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = paper.find(name)
    for scale in ("smoke", "paper"):
        assert scales.left_out(experiment, scale) == []
    arguments = ["reproduce", name, "--plan", "--scale", "small", "--seeds", "0", "-o", str(tmp_path)]
    if name in NOTHING_LEFT:
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert f"nothing is left of {name} at scale small; take --scale smoke or paper" in said
    else:
        assert main(arguments) == 0
        said = capsys.readouterr().out
        planned = {run.config.recipe for run in experiment.plan(request(tmp_path / "runs"))}
        assert planned == set() if name == "cost" else planned == set(experiment.recipes) - set(LEFT_OUT.get(name, ()))
    missing = LEFT_OUT.get(name, []) + NOTHING_LEFT.get(name, [])
    assert ("leaves out" in said) == bool(missing)
    if missing:
        assert f"{name} leaves out {', '.join(missing)} at scale small: " in said
        assert recipes.known()[missing[0]].without["small"] in said


def test_a_result_says_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole command at the small scale, on made-up images and a few of them."""
    changes = ("data.name=synthetic", "data.options.train_size=64", "data.options.test_size=32", "schedule.epochs=4")
    arguments = ["--scale", "small", "--seeds", "0", "-o", str(tmp_path), *(f"--set={text}" for text in changes)]
    assert main(["reproduce", "cifar", "--recipes", "cifar10-resnet18", "--methods", "sgd", *arguments]) == 0
    said, folder = capsys.readouterr().out, tmp_path / "cifar" / "small"
    sentence = f"cifar leaves out {', '.join(LEFT_OUT['cifar'])} at scale small: {cifar.NO_SMALL}."
    assert said.startswith(sentence), "before anything is trained"
    result = json.loads((folder / "result.json").read_text())
    assert sentence in result["notes"]
    assert sentence in (folder / "table.md").read_text()
    assert [row["recipe"] for row in result["rows"]] == ["cifar10-resnet18"]
    missing = result["part"]["missing"]
    assert len(missing) == 2 * 7 - 1, "what does not have the scale is not missing"
    assert not any("WRN" in run or "Pyramid" in run for run in missing)


def test_the_list_of_experiments_says_what_they_leave_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list", "--scale", "small", "--seeds", "0", "-o", str(tmp_path)]) == 0
    listed = dict(line.split("\t")[::2] for line in capsys.readouterr().out.splitlines() if "\t" in line)
    assert listed["lesam-plus"] == "0 of 4 runs finished, without cifar100-wrn, cifar100-pyramid"
    assert listed["radius"] == "0 of 3 runs finished"
    assert listed["imagenet"] == listed["vit-finetune"] == "not at this scale"


def test_cost_measures_what_has_the_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(self: cost.Cost, recipe: str, request: Request) -> dict[str, Any]:
        measured.append(recipe)
        return {"seconds_per_epoch": {"sam": 1.0, "lesam": 1.0}, "ratio": 1.0, "ratios": [1.0]}

    monkeypatch.setattr(cost.Cost, "_measure", measure)
    for scale, expected in (("small", ["cifar100-resnet18"]), ("paper", list(cost.EXPERIMENT.recipes))):
        measured.clear()
        cost.EXPERIMENT.report(request(tmp_path, scale=scale), [])
        assert measured == expected


def test_what_is_asked_for_by_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In all commands that take a recipe and a scale; an experiment with nothing left stops those before it too."""
    folder = ["-o", str(tmp_path / "out")]
    refused = "cifar100-wrn has no scale 'small'"
    for arguments, words in (
        (["train", "cifar100-wrn", "--scale", "small", "--dry-run"], refused),
        (["sweep", "cifar100-wrn", "--scale", "small", "--grid", "optimizer.sigma=0.1,0.2", *folder], refused),
        (["reproduce", "cifar", "--recipes", "cifar100-resnet18", "cifar100-wrn", *folder], refused),
        (["reproduce", "cifar", "imagenet", *folder], "nothing is left of imagenet at scale small"),
    ):
        assert main(arguments) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_list_of_recipes_names_the_scales_of_those_that_lack_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.partition("Methods: ")[0].splitlines()
    for name, recipe in recipes.known().items():
        (line,) = (line for line in lines if line.startswith(f"| {name} "))
        assert ("(scales smoke, paper)" in line) == ("small" not in recipe.scales)
