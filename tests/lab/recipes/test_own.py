"""A recipe of one's own: ``module:function`` on the command line, and nowhere else."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lesam.lab import recipes
from lesam.lab.cli import main
from lesam.lab.runs.folder import RunFolder, find_runs

MODULE = """
from dataclasses import replace

from lesam.lab import recipes


def shorter(method, scale, seed):
    config = recipes.build("digits", method=method, scale=scale, seed=seed)
    return replace(config, recipe="shorter", schedule=replace(config.schedule, epochs=1, budget_anneal_start=None))


def doubled(method, scale, seed):
    config = shorter(method, scale, seed)
    return replace(config, system=replace(config.system, precision="64-true"))


def nothing(method, scale, seed):
    return None


def another_seed(method, scale, seed):
    return shorter(method, scale, seed + 1)


def elsewhere(method, scale, seed):
    return replace(shorter(method, scale, seed), recipe="../elsewhere")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module in it that no other test has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    (tmp_path / f"{tmp_path.name}_recipes.py".replace("-", "_")).write_text(MODULE)
    return tmp_path


def named(folder: Path, function: str) -> str:
    return f"{folder.name}_recipes:{function}".replace("-", "_")


def test_it_is_trained_swept_and_tabulated_like_any_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = named(folder, "shorter")
    assert main(["train", mine, "--method", "sam", "--scale", "smoke", "--set", "optimizer.rho=0.1"]) == 0
    (run,) = find_runs(["runs"])
    assert (run.config().recipe, run.config().schedule.epochs) == ("shorter", 1)
    assert run.config().optimizer.rho == 0.1
    assert main(["sweep", mine, "--method", "sam", "--scale", "smoke", "--grid", "optimizer.rho=0.1,0.2"]) == 0
    assert len(find_runs(["runs"])) == 2  # the first one was there already
    capsys.readouterr()
    assert main(["table", "runs"]) == 0
    assert "| shorter | smoke | SAM (rho=0.1) | 1 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("shortr", "did you mean 'shorter'"),
        ("nothing", "must return a RunConfig, got NoneType"),
        ("another_seed", "asked for method, scale and seed"),
        ("elsewhere", "letters, digits, dots, dashes and underscores only"),
    ],
)
def test_mistakes_end_in_a_sentence(
    function: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", named(folder, function), "--scale", "smoke"]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "runs").exists()
    assert main(["train", "no_such_module_of_mine:shorter", "--scale", "smoke"]) == 2
    assert f"it must lie in {folder}" in capsys.readouterr().err


def test_a_run_folder_that_names_a_module_does_not_import_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "hostile.py").write_text("raise SystemExit('imported')")
    assert main(["train", "digits", "--method", "sgd", "--scale", "smoke"]) == 0
    (run,) = find_runs(["runs"])
    config = json.loads((run.path / "config.json").read_text())
    (run.path / "config.json").write_text(json.dumps(config | {"recipe": "hostile:boom", "scale": "paper"}))
    for command in (
        ["table", "runs"],
        ["plot", "curves", "runs"],
        ["attack", "runs", "--samples", "2", "--steps", "1"],
    ):
        assert main(command) == 0
    assert RunFolder(run.path).config().recipe == "hostile:boom"
    assert "hostile" not in sys.modules


def test_every_recipe_lies_in_a_file_of_its_own_kind() -> None:
    assert all(recipe.name == name and recipe.title for name, recipe in recipes.known().items())


def test_its_own_system_section_stays_where_the_command_says_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = named(folder, "doubled")
    assert main(["train", mine, "--method", "sam", "--scale", "smoke", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["system"]["precision"] == "64-true"
    assert main(["train", mine, "--method", "sam", "--scale", "smoke", "--precision", "32-true", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["system"]["precision"] == "32-true"


def test_a_package_that_it_lacks_is_named_with_its_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "lacking_recipes.py").write_text("import a_package_nobody_has\n")
    assert main(["train", "lacking_recipes:f", "--scale", "smoke"]) == 1
    said = capsys.readouterr().err
    assert f"{folder / 'lacking_recipes.py'} needs 'a_package_nobody_has'" in said
    assert "pip install" not in said


@pytest.mark.parametrize(
    ("recipe", "words"),
    [("os:getcwd", "must be a function of (method, scale, seed)"), ("../x:f", "is named module:function, as Python")],
)
def test_what_is_no_recipe_is_refused_in_a_sentence(
    folder: Path, recipe: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", recipe, "--scale", "smoke"]) == 2
    assert words in capsys.readouterr().err
