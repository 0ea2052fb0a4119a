"""Run folders of somebody else, of another version, or damaged: read what is readable, name what is not."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lesam import __version__
from lesam.lab import recipes
from lesam.lab.cli import main
from lesam.lab.config.text import override
from lesam.lab.data.loading import load_data
from lesam.lab.runs.folder import RunFolder, find_runs
from tests.lab.running import Listener, last_checkpoint, smoke, trained


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


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", "5\n"),
        ("metrics.jsonl", '{"no": "epoch"}\n'),
        ("summary.json", '{"last": {"test_accuracy": 0.5}}'),
        ("summary.json", '{"last": {"test_accuracy": "abc"}, "best_test_selected": {"test_accuracy": 0.5}}'),
    ],
)
def test_a_file_of_another_shape_is_named_and_the_other_runs_are_shown(
    runs: Path, name: str, content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [shutil.copytree(run, tmp_path / run.name) for run in sorted(runs.iterdir())]
    (folders[0] / name).write_text(content)
    assert main(["table", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert str(folders[0] / name) in captured.err
    assert "| SGD | 1 |" in captured.out


@pytest.mark.parametrize("content", ["[{", "5", "[5]"])
def test_a_damaged_list_of_starts_is_named(runs: Path, content: str, tmp_path: Path) -> None:
    source = sorted(runs.iterdir())[0]
    folder = RunFolder(shutil.copytree(source, tmp_path / source.name))
    (folder.path / "environment.json").write_text(content)
    with pytest.raises(ValueError, match=r"environment\.json is damaged"):
        folder.environments()


def test_a_linked_run_folder_is_found_once_and_loops_end(runs: Path, tmp_path: Path) -> None:
    first, second = sorted(runs.iterdir())
    (tmp_path / "link").symlink_to(first, target_is_directory=True)
    shutil.copytree(second, tmp_path / second.name)
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert [run.path.name for run in find_runs([tmp_path])] == sorted(["link", second.name])


def test_rows_without_a_checkpoint_are_kept_aside(tmp_path: Path) -> None:
    config = smoke("digits", "schedule.epochs=1")
    folder = trained(config, tmp_path)
    before = (folder.path / "metrics.jsonl").read_text()
    shutil.rmtree(folder.checkpoints)
    (folder.path / "summary.json").unlink()
    (folder.path / "earlier" / "1-mine").mkdir(parents=True)
    listener = Listener()
    trained(config, tmp_path, listener)
    assert (folder.path / "earlier" / "1" / "metrics.jsonl").read_text() == before
    assert any("there is no checkpoint" in message for message in listener.messages)


def test_weights_without_rows_are_no_result(tmp_path: Path) -> None:
    config = smoke("digits", "schedule.epochs=1")
    folder = trained(config, tmp_path)
    for name in ("metrics.jsonl", "summary.json"):
        (folder.path / name).unlink()
    with pytest.raises(ValueError, match="no rows of it"):
        trained(config, tmp_path)
    assert not (folder.path / "summary.json").exists()
