"""Run folders of somebody else, of another version, or damaged: read what is readable, name what is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lesam import __version__
from lesam.lab import recipes
from lesam.lab.cli import main
from lesam.lab.config.text import override
from lesam.lab.data.loading import load_data
from lesam.lab.runs.folder import RunFolder
from tests.lab.running import last_checkpoint, smoke, trained


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two good runs."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        trained(replace(smoke("digits", "schedule.epochs=1"), seed=seed), folder)
    return folder


@pytest.mark.parametrize("there", [True, False])
def test_a_folders_data_root_is_neither_made_nor_filled(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    if there:
        theirs.mkdir()
    monkeypatch.setenv("LESAM_DATA", str(mine))
    config = recipes.build("cifar10-resnet18", method="sgd", scale="paper")
    config = override(config, [f"data.root={theirs}", "data.options.download=false"])
    with pytest.raises(FileNotFoundError, match=str(mine)):
        load_data(config)
    assert theirs.exists() == there
    assert not there or not any(theirs.iterdir())


def test_an_option_cannot_stand_in_for_the_root(tmp_path: Path) -> None:
    config = recipes.build("cifar10-resnet18", method="sgd", scale="paper")
    with pytest.raises(ValueError, match=r"data\.root"):
        load_data(override(config, [f"data.options.root={tmp_path / 'theirs'}"]))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("sums", [{}, {"weights.safetensors": "0"}, [], None])
def test_a_manifest_without_hashes_is_not_intact(sums: object, tmp_path: Path) -> None:
    checkpoint = last_checkpoint(trained(smoke("digits", "schedule.epochs=1"), tmp_path))
    manifest = checkpoint.path / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"sha256": sums}))
    assert checkpoint.damage() is not None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", '{"recipe": "digits"}'),
        ("summary.json", '{"last": '),
        ("summary.json", "[1]"),
        ("metrics.jsonl", "{\n{}\n"),
    ],
)
def test_one_damaged_folder_is_named_and_the_others_are_shown(
    name: str,
    content: str,
    runs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = RunFolder(tmp_path / "bad")
    bad.create(smoke("digits"), {})
    (bad.path / name).write_text(content)
    assert main(["table", str(runs), str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "| digits | smoke | SGD | 2 |" in printed.out
    assert str(bad.path / name) in printed.err
    assert main(["plot", "curves", str(runs), str(tmp_path), "-o", str(tmp_path / "curves.png")]) == 0
    assert str(bad.path / name) in capsys.readouterr().err
    assert main(["table", str(tmp_path)]) == 2
    assert str(bad.path) in capsys.readouterr().err


def test_a_folder_of_another_version_says_which(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create(smoke("digits"), {"packages": {"lesam": "0.0.7"}, "commit": {"id": "0123456789abcdef"}})
    file = run.path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"flavour": 1}))
    with pytest.raises(ValueError, match=r"config\.json .*lesam 0\.0\.7 at commit 0123456789") as caught:
        run.config()
    assert __version__ in str(caught.value)
    assert "flavour" in str(caught.value)
