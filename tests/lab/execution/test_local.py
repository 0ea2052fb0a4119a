"""Pools of this machine: which GPU a worker sees, who reads image files, and what is left when nobody listens."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from PIL import Image

from lesam.lab import recipes
from lesam.lab.cli import main
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.execution.display import Display
from lesam.lab.execution.jobs import Event, Job
from lesam.lab.execution.local import Pool, seen_gpus
from lesam.lab.execution.where import Where, executor
from lesam.lab.runs.folder import RunFolder
from tests.lab.execution.conftest import LONG, epochs, long_run, wait_for


def short(seed: int) -> RunConfig:
    return long_run("schedule.epochs=1", seed=seed)


def test_workers_at_a_time_see_different_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    jobs = [Job(key=seed, config=long_run("schedule.epochs=20", seed=seed)) for seed in range(2)]
    Pool(runs=tmp_path, jobs=2, gpus=1).run(jobs, lambda event: None)
    seen = {RunFolder.of(job.config, tmp_path).environments()[0]["visible_gpus"] for job in jobs}
    assert seen == {"3", "5"}


def test_a_share_of_a_gpu_puts_several_workers_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert seen_gpus(4, 0.5) == ["3", "3", "5", "5"]
    assert seen_gpus(3, None) == ["3", "5", "3"]
    assert seen_gpus(2, 0) == ["", ""]
    with pytest.raises(ValueError, match=r"5 runs at a time with 0\.5 of a GPU each need 3 GPUs, and there are 2"):
        seen_gpus(5, 0.5)
    with pytest.raises(ValueError, match="--gpus 2: a run of a pool has one GPU"):
        seen_gpus(1, 2)


def test_image_files_are_read_by_processes_of_the_worker(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for label in ("a", "b"):
            (tmp_path / "images" / split / label).mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (40, 40), (60 * number, 0, 0)).save(
                    tmp_path / "images" / split / label / f"{number}.jpg"
                )
    config = override(
        recipes.build("imagenet-resnet50", method="sgd", scale="paper"),
        [f"data.root={tmp_path / 'images'}", "schedule.epochs=1", "data.batch_size=4", "data.augment_options.size=32"],
    )
    readers: list[int] = []

    def progress(event: Event) -> None:
        assert event.kind != "failed", event.error
        if event.kind == "epoch":
            (worker,) = multiprocessing.active_children()
            family = psutil.Process(worker.pid).children(recursive=True)
            readers.append(sum(not one.children() for one in family))  # one between may be a server that forks them

    Pool(runs=tmp_path / "runs", jobs=1, threads=2).run([Job(key=0, config=config)], progress)
    assert readers == [2]


def test_a_driver_that_is_killed_leaves_a_checkpoint_of_the_last_step(
    tmp_path: Path, undisturbed: Callable[[RunConfig, Path], None]
) -> None:
    run = long_run("optimizer.sigma=0.3", "record.checkpoint_every=100000")
    changes = [part for change in (*LONG[:3], "record.checkpoint_every=100000") for part in ("--set", change)]
    sweep = ["sweep", "digits", "--scale", "smoke", *changes, "--grid", "optimizer.sigma=0.3", "--runs", str(tmp_path)]
    driver = subprocess.Popen([sys.executable, "-m", "lesam", *sweep], stdout=subprocess.DEVNULL)
    folder = RunFolder.of(run, tmp_path)
    wait_for(lambda: epochs(run, tmp_path) > 5)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait_for(lambda: not folder.busy())
    assert folder.summary() is None
    assert list(folder.checkpoints.iterdir())
    assert main(sweep) == 0
    undisturbed(run, tmp_path)


def test_a_worker_that_is_killed_is_replaced_and_its_run_resumes(
    tmp_path: Path, undisturbed: Callable[[RunConfig, Path], None]
) -> None:
    run = long_run()
    kinds: list[str] = []

    def progress(event: Event) -> None:
        if event.kind == "epoch" and event.row is not None and event.row["epoch"] == 15 and kinds == ["started"]:
            (worker,) = multiprocessing.active_children()
            worker.kill()
        if event.kind != "epoch":
            kinds.append(event.kind)

    Pool(runs=tmp_path, jobs=1).run([Job(key=0, config=run)], progress)
    assert kinds == ["started", "started", "done"]
    assert len(RunFolder.of(run, tmp_path).environments()) == 2
    undisturbed(run, tmp_path)


def test_an_epoch_that_is_answered_by_false_stops_its_job_alone(tmp_path: Path) -> None:
    ended = []

    def progress(event: Event) -> bool:
        if event.kind in ("done", "stopped"):
            ended.append((event.job.key, event.kind))
        return not (event.kind == "epoch" and event.job.key == "long")

    jobs = [Job(key="long", config=long_run("schedule.epochs=5000")), Job(key="short", config=short(1))]
    Pool(runs=tmp_path, jobs=1).run(jobs, progress)
    assert ended == [("long", "stopped"), ("short", "done")]
    assert 0 < epochs(jobs[0].config, tmp_path) < 5000


def test_lines_say_what_is_running_and_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, *[10.0 * number for number in range(1, 30)]])
    monkeypatch.setattr("lesam.lab.execution.display.time.monotonic", lambda: next(clock))
    job = Job(key=0, config=long_run("schedule.epochs=4"))
    with Display(2) as display:
        display(Event(job=job, kind="started"))
        display(Event(job=job, kind="epoch", row={"epoch": 0}))
        display(Event(job=job, kind="interrupted"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "0 of 2 runs ended, 1 running"
    assert lines[1].startswith("0 of 2 runs ended, 1 running, 0:0")
    assert lines[-1] == "stopping: runs that have begun write a checkpoint, and the same command resumes"


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (Where(on="cloud"), "--on is local, ray, ray:ADDRESS or slurm, got 'cloud'"),
        (Where(on="ray:"), "--on is local, ray, ray:ADDRESS or slurm, got 'ray:'"),
        (Where(partition="long"), "--partition is for --on slurm, and this is --on local"),
        (Where(on="ray", minutes=5), "--minutes is for --on slurm, and this is --on ray"),
    ],
)
def test_a_place_that_does_not_exist_is_a_sentence(where: Where, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        executor(where, tmp_path, jobs=1)


def test_an_experiment_is_trained_by_tasks_and_reported_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = ["reproduce", "stabilisers", "--scale", "smoke", "-o", str(tmp_path)]
    assert main([*experiment, "--plan", "--device-factor", "50"]) == 0
    plan = capsys.readouterr().out
    assert "sbatch --array=0-3 --requeue --signal=USR1@90 --wrap" in plan
    assert "on devices 50 times as fast as this machine: about" in plan
    assert main([*experiment, "--task", "1"]) == 0
    assert len(list((tmp_path / "runs").glob("*/summary.json"))) == 1
    assert main([*experiment, "--report-only"]) == 0
    assert "stabilisers: 3 of 4 runs are not finished and left out" in capsys.readouterr().out
    (tmp_path / "stabilisers" / "smoke" / "result.json").rename(tmp_path / "partial.json")
    assert main([*experiment, "--task", "4"]) == 2
    assert "--task 4: there are 4 runs, numbered from 0" in capsys.readouterr().err
    assert main([*experiment, "--task", "1", "--on", "slurm"]) == 2
    assert "--on slurm sends runs away" in capsys.readouterr().err
    assert main([*experiment, "--train-only", "--jobs", "2"]) == 0
    assert len(list((tmp_path / "runs").glob("*/summary.json"))) == 4
    assert not (tmp_path / "stabilisers" / "smoke" / "result.json").exists()
    assert main([*experiment, "--report-only"]) == 0
    assert (tmp_path / "stabilisers" / "smoke" / "result.json").exists()
