"""Commands that share their runs: nothing is trained twice, everybody ends well, a failure stops nobody."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lesam.lab import recipes
from lesam.lab.cli import main
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.execution import jobs
from lesam.lab.execution.jobs import Event, Job
from lesam.lab.execution.local import Pool
from lesam.lab.runs.folder import RunFolder, find_runs
from lesam.lab.training import loop


def both(arguments: list[str]) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "lesam", *arguments]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in started:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        assert "Traceback" not in errors
    return started


def starts(runs: Path) -> list[int]:
    return [len(run.environments()) for run in find_runs([runs])]


def test_a_sweep_started_twice_trains_every_run_once(tmp_path: Path) -> None:
    short = ["--set", "schedule.epochs=40", "--set", "data.options.train_size=100"]
    grid = ["--grid", "optimizer.sigma=0.1,0.2", *short]
    both(["sweep", "digits", "--scale", "smoke", *grid, "--jobs", "2", "--runs", str(tmp_path)])
    assert starts(tmp_path) == [1, 1]
    assert all(run.summary() for run in find_runs([tmp_path]))


def test_an_experiment_started_twice_trains_every_run_once(tmp_path: Path) -> None:
    both(["reproduce", "stabilisers", "--scale", "smoke", "-o", str(tmp_path)])
    assert starts(tmp_path / "runs") == [1, 1, 1, 1]
    assert len(json.loads((tmp_path / "stabilisers" / "smoke" / "result.json").read_text())["rows"]) == 4


def config(*changes: str) -> RunConfig:
    built = recipes.build("digits", scale="smoke")
    return override(built, ["schedule.epochs=1", "data.options.train_size=100", *changes])


def test_a_run_that_is_locked_is_put_off_until_its_owner_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PAUSE", 0.2)
    locked, free = config("optimizer.sigma=0.2"), config("optimizer.sigma=0.3")
    lock = RunFolder.of(locked, tmp_path).lock()
    lock.__enter__()
    done: list[Any] = []

    def record(event: Event) -> None:
        if event.kind == "done":
            done.append(event.job.key)
            if event.job.key == "free":
                lock.__exit__(None, None, None)

    Pool(runs=tmp_path, jobs=1).run([Job(key="locked", config=locked), Job(key="free", config=free)], record)
    assert done == ["free", "locked"]


def test_a_run_that_was_finished_meanwhile_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = config()
    original = loop.Session

    def late(*arguments: Any, **options: Any) -> Any:
        """Another process trains the run while this one loads its data."""
        monkeypatch.setattr(loop, "Session", original)
        loop.train(run, runs=tmp_path)
        return original(*arguments, **options)

    monkeypatch.setattr(loop, "Session", late)
    summary = loop.train(run, runs=tmp_path)
    assert summary == RunFolder.of(run, tmp_path).summary()
    assert starts(tmp_path) == [1]


SWEEP = ("sweep", "digits", "--method", "sgd", "--scale", "smoke", "--grid", "optimizer.lr=0.1,0.2")


def test_an_ordinary_mistake_of_one_run_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = (config_of_sweep(lr) for lr in ("0.1", "0.2"))
    (tmp_path / bad.folder_name).write_text("a file where the run's folder should be")
    assert main([*SWEEP, "--runs", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err + captured.out
    number, line = captured.err.splitlines()
    assert number == "lesam: 1 of 2 runs failed; the same command trains them again"
    assert line.startswith("optimizer.lr=0.2 seed 0: [Errno ")
    assert bad.folder_name in line
    assert RunFolder.of(good, tmp_path).summary() is not None


@pytest.mark.parametrize("command", ["sweep", "reproduce"])
def test_an_error_that_nobody_expected_has_a_file_with_its_traceback(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SWEEP, "--runs", str(tmp_path / "runs")]
    if command == "reproduce":
        arguments = ["reproduce", "radius", "--scale", "smoke", "--methods", "sam", "-o", str(tmp_path)]
    assert main(arguments) == 0
    run = find_runs([tmp_path / "runs"])[0]
    (run.path / "summary.json").unlink()
    (run.path / "metrics.jsonl").write_text('{"epoch": 0, "step": "first"}\n')  # no number, which nothing looks out for
    capsys.readouterr()
    assert main(arguments) == 1
    captured = capsys.readouterr()
    log = run.path / "failure.log"
    assert "Traceback" not in captured.err + captured.out
    assert f"{log} has the traceback" in captured.err
    assert log.read_text().startswith("Traceback (most recent call last):\n")
    assert "KeyError" in captured.err


def config_of_sweep(lr: str) -> RunConfig:
    return override(recipes.build("digits", method="sgd", scale="smoke"), [f"optimizer.lr={lr}"])


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_failed_run_does_not_stop_the_others_of_an_experiment(
    jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["reproduce", "radius", "--scale", "smoke", "-o", str(tmp_path), "--jobs", jobs]
    assert main([*arguments, "--methods", "sam"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    taken = tmp_path / "runs" / "taken"
    run.rename(taken)
    run.write_text("a file where the run's folder should be")  # the first of the three runs cannot be trained
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert run.name in captured.err
    assert "1 of the runs of radius failed" in captured.err
    assert "File exists" in captured.err or "Not a directory" in captured.err
    assert "Traceback" not in captured.err + captured.out
    rows = json.loads((tmp_path / "radius" / "smoke" / "result.json").read_text())["rows"]
    assert {"LE-SAM", "LE-SAM, no cap, no annealing"} <= {row["row"] for row in rows}
    run.unlink()
    assert main(arguments) == 0
