"""Labels of groups say what differs, in words where a setting is switched off."""

from __future__ import annotations

from pathlib import Path

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


def test_a_number_keeps_its_name(tmp_path: Path) -> None:
    found = labels(tmp_path, ("optimizer.sigma=0.1",), ("optimizer.sigma=0.2",))
    assert found == ["LE-SAM (sigma=0.1)", "LE-SAM (sigma=0.2)"]
