"""``lesam status``: every state a run can be in, told apart by its folder alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lesam.lab.cli import main
from lesam.lab.report.status import standing
from lesam.lab.runs.folder import RunFolder
from lesam.lab.training.failures import LOG
from lesam.lab.training.loop import train
from tests.lab.running import BreakOff, smoke, trained


def broken_off(runs: Path, seed: int) -> RunFolder:
    """A run of three epochs that a lost connection ended after the first."""
    config = replace(smoke("digits", "schedule.epochs=3", "record.checkpoint_every=1"), seed=seed)
    with pytest.raises(ConnectionError):
        train(config, runs=runs, progress=BreakOff(epochs=1))
    return RunFolder.of(config, runs)


def test_states_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished, lost = (trained(replace(smoke("digits"), seed=seed), tmp_path) for seed in (0, 1))
    lost.finish({**(lost.summary() or {}), "diverged_at": 3})
    stopped, failed, busy = (broken_off(tmp_path, seed) for seed in (2, 3, 4))
    (failed.path / LOG).write_text("Traceback")
    with busy.lock():
        found = {run.path.name: standing(run) for run in (finished, lost, stopped, failed, busy)}
        assert main(["status", str(tmp_path)]) == 0
    states = [each.state for each in found.values()]
    assert states == ["finished", "diverged", "stopped", "failed", "training"]
    assert standing(busy).state == "stopped"
    printed = capsys.readouterr().out
    assert f"| {busy.path.name} | SGD | 4 | training | 1 of 3 |" in printed
    assert f"failed, see its {LOG}" in printed


def test_time_left_is_the_pace_so_far_times_what_is_left(tmp_path: Path) -> None:
    run = broken_off(tmp_path, 0)
    elapsed = run.metrics()[0]["elapsed"]
    assert standing(run).left == pytest.approx(2 * elapsed)
    assert standing(trained(smoke("digits"), tmp_path / "other")).left is None


def test_a_damaged_run_is_named_and_the_others_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = (trained(replace(smoke("digits"), seed=seed), tmp_path) for seed in (0, 1))
    (bad.path / "config.json").write_text("{")
    capsys.readouterr()
    assert main(["status", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert good.path.name in captured.out
    assert bad.path.name not in captured.out
    assert str(bad.path) in captured.err


NESTED = '{"epoch": 1, "rho": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.mark.parametrize("row", ['{"epoch": null}', '{"epoch": "two"}', NESTED], ids=["null", "text", "nested"])
def test_a_last_row_without_an_epoch_is_damage_too(
    row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = broken_off(tmp_path, 0), broken_off(tmp_path, 1)
    with (bad.path / "metrics.jsonl").open("a") as file:
        file.write(row + "\n")
    assert main(["status", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert good.path.name in captured.out
    assert bad.path.name not in captured.out
    assert str(bad.path) in captured.err
    assert main(["show", str(bad.path)]) == 2
    assert str(bad.path) in capsys.readouterr().err


def test_without_a_clock_there_is_no_time_left_to_tell(tmp_path: Path) -> None:
    config = smoke("digits", "schedule.epochs=3")
    run = RunFolder.of(config, tmp_path)
    run.create(config, {})
    run.append({"epoch": 0, "test_accuracy": 0.5}, [])
    found = standing(run)
    assert (found.epochs, found.of, found.left, found.accuracy) == (1, 3, None, 0.5)


def test_looking_at_a_run_writes_nothing(tmp_path: Path) -> None:
    run = broken_off(tmp_path, 0)
    lock = run.path / ".lock"
    lock.write_text("as it was")  # opened for writing it would be empty, also for those whom no permission stops
    lock.chmod(0o444)
    run.path.chmod(0o555)
    try:
        assert main(["status", str(tmp_path)]) == 0
        assert standing(run).state == "stopped"
    finally:
        run.path.chmod(0o755)
    assert lock.read_text() == "as it was"
