"""Labels of groups say what differs, in words where a setting is switched off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.repetitions import group
from tests.lab.running import smoke


def labels(runs: Path, *changes: tuple[str, ...]) -> list[str]:
    folders = []
    for each in changes:
        config = smoke("digits", *each, method="lesam")
        folder = RunFolder.of(config, runs)
        folder.create(config, {})
        folders.append(folder)
    return [each.label for each in group(folders)]


def test_a_stabiliser_that_is_switched_off_is_named_in_words(tmp_path: Path) -> None:
    off = ("optimizer.rho_max=none", "schedule.budget_anneal_start=none")
    on = ("optimizer.rho_max=0.4", "schedule.budget_anneal_start=1", "schedule.budget_warmup=1")
    found = labels(tmp_path, off, on)
    assert sorted(found) == [
        "LE-SAM (no cap, no warm-up, not annealed)",
        "LE-SAM (rho_max=0.4, warm-up 1, annealed from 1)",
    ]


def test_annealing_from_the_first_epoch_is_not_called_off(tmp_path: Path) -> None:
    found = labels(tmp_path, ("schedule.budget_anneal_start=none",), ("schedule.budget_anneal_start=0",))
    assert sorted(found) == ["LE-SAM (annealed from 0)", "LE-SAM (not annealed)"]


@pytest.mark.parametrize(("one", "other"), [(1000, 1000.0), (32, "32"), (1, True), (None, "None")])
def test_no_two_groups_have_the_same_label(tmp_path: Path, one: object, other: object) -> None:
    folders = []
    for number, value in enumerate((one, other)):
        folder = RunFolder(tmp_path / str(number))
        folder.create(smoke("digits", method="lesam"), {})
        config = json.loads((folder.path / "config.json").read_text())
        config["data"]["options"]["train_size"] = value
        (folder.path / "config.json").write_text(json.dumps(config))
        folders.append(folder)
    found = {each.label for each in group(folders)}
    assert found == {f"LE-SAM (train_size={one!r})", f"LE-SAM (train_size={other!r})"}


def test_settings_that_read_alike_are_numbered(tmp_path: Path) -> None:
    folders = []
    for number, options in enumerate(({"a": 1, "b": 2}, {"a": "1", "b": 2}, {"a": "1, b=2"})):
        folder = RunFolder(tmp_path / str(number))
        folder.create(smoke("digits", method="lesam"), {})
        config = json.loads((folder.path / "config.json").read_text())
        config["data"]["options"] = options
        (folder.path / "config.json").write_text(json.dumps(config))
        folders.append(folder)
    assert len({each.title for each in group(folders)}) == 3


def test_a_number_keeps_its_name(tmp_path: Path) -> None:
    found = labels(tmp_path, ("optimizer.sigma=0.1",), ("optimizer.sigma=0.2",))
    assert found == ["LE-SAM (sigma=0.1)", "LE-SAM (sigma=0.2)"]
