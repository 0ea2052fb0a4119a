"""Runs by SLURM, the real one: what is preempted, cancelled, killed or stopped loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lesam.lab.config.run import RunConfig
from lesam.lab.execution import on_slurm
from lesam.lab.execution.jobs import Event, Executor, Job
from lesam.lab.execution.local import Pool
from lesam.lab.execution.on_slurm import OnSlurm
from lesam.lab.execution.remote import Needs
from lesam.lab.runs.folder import RunFolder
from tests.lab.execution.conftest import LONG, epochs, long_run, wait_for
from tests.lab.execution.slurm import Slurm, slurm
from tests.lab.sweeps.searching import find, opened
from tests.needs import program

pytestmark = [
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(program("sbatch", "LESAM_SBATCH") is None, reason="there is no SLURM here"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the daemons of SLURM are started as root"),
]

Undisturbed = Callable[[RunConfig, Path], None]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm") / "daemons") as cluster:
        yield cluster


@pytest.fixture
def here(cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """The cluster, as programs of this process see it; which asks it more often than it would a large one."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(on_slurm, "ASK", 1.0)
    monkeypatch.setattr(on_slurm, "GRACE", 2.0)
    return cluster


def started(config: RunConfig, runs: Path) -> int:
    return len(RunFolder.of(config, runs).environments())


def send(runs: Path, *configs: RunConfig, disturb: Callable[[], object]) -> list[Event]:
    """Train runs by SLURM; something happens when all of them have begun."""
    ended: list[Event] = []
    waiting = {config.fingerprint for config in configs}

    def progress(event: Event) -> None:
        if event.kind == "epoch" and event.row is not None and event.row["epoch"] >= 15:
            waiting.discard(event.job.key)
            if not waiting and not threads:
                threads.append(threading.Thread(target=disturb))
                threads[0].start()
        elif event.kind not in ("started", "epoch"):
            ended.append(event)

    threads: list[threading.Thread] = []
    executor = OnSlurm(runs=runs, jobs=None, needs=Needs(), partition="short", minutes=10)
    executor.run([Job(key=config.fingerprint, config=config) for config in configs], progress)
    for thread in threads:
        thread.join()
    return ended


def task(cluster: Slurm, number: int) -> str:
    """The task of an array that is in the queue."""
    (found,) = [name for name in cluster("squeue", "-h", "-r", "-o", "%i").split() if name.endswith(f"_{number}")]
    return found


def test_a_preempted_task_resumes_and_a_cancelled_one_is_reported_once(
    here: Slurm, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    preempted, cancelled = long_run(), long_run(seed=1)

    def disturb() -> None:
        here("scancel", "--signal=USR2", task(here, 0))
        here("scancel", "--full", task(here, 1))

    ended = {event.job.key: event for event in send(tmp_path, preempted, cancelled, disturb=disturb)}
    assert ended[preempted.fingerprint].kind == "done"
    assert started(preempted, tmp_path) == 2
    undisturbed(preempted, tmp_path)
    failure = ended[cancelled.fingerprint]
    assert (failure.kind, failure.summary) == ("failed", None)
    assert "(state CANCELLED)" in failure.error
    assert started(cancelled, tmp_path) == 1
    assert RunFolder.of(cancelled, tmp_path).summary() is None


def test_a_node_that_disappears_costs_what_was_trained_since_the_last_checkpoint(
    here: Slurm, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    run = long_run()

    def disturb() -> None:
        here.kill_node()
        here.start_node()

    (event,) = send(tmp_path, run, disturb=disturb)
    assert event.kind == "done", event.error
    assert started(run, tmp_path) == 2
    undisturbed(run, tmp_path)


def command(*arguments: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lesam", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background may ignore it
    )


def test_a_driver_that_is_stopped_leaves_checkpoints_and_the_same_command_resumes(
    cluster: Slurm, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    run = long_run("optimizer.sigma=0.3")
    changes = [part for change in LONG for part in ("--set", change)]
    sweep = ["sweep", "digits", "--scale", "smoke", *changes, "--grid", "optimizer.sigma=0.3", "--runs", str(tmp_path)]
    sweep += ["--on", "slurm", "--minutes", "10"]
    driver = command(*sweep, environment=cluster.environment)
    wait_for(lambda: epochs(run, tmp_path) > 15)
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate(timeout=120)
    assert driver.returncode == 130, output
    assert "stopping: runs that have begun write a checkpoint, and the same command resumes" in output
    wait_for(lambda: not cluster("squeue", "-h").strip(), 30)
    assert RunFolder.of(run, tmp_path).summary() is None
    again = command(*sweep, environment=cluster.environment)
    output, _ = again.communicate(timeout=200)
    assert again.returncode == 0, output
    assert "1 of 1 runs finished" in output
    assert started(run, tmp_path) == 2
    undisturbed(run, tmp_path)


def test_tasks_of_srun_train_one_run_and_are_queued_again_before_their_time_is_over(
    cluster: Slurm, tmp_path: Path
) -> None:
    train = [sys.executable, "-m", "lesam", "train", "digits", "--scale", "smoke", "--accelerator", "cpu"]
    shorter = ("schedule.epochs=100", *LONG[1:])
    train += ["--runs", str(tmp_path / "runs"), *(part for change in shorter for part in ("--set", change))]
    output = tmp_path / "output.txt"
    script = tmp_path / "job.sh"
    options = f"--ntasks-per-node=2 --requeue --open-mode=append --output={output}"
    script.write_text(f"#!/bin/bash\n#SBATCH {options}\nsrun {' '.join(train)}\n")
    number = cluster("sbatch", "--parsable", str(script)).strip()
    wait_for(lambda: any(len(run.metrics()) > 15 for run in found(tmp_path)))
    cluster("scancel", "--signal=USR1", number)
    wait_for(lambda: not cluster("squeue", "-h").strip())
    (run,) = found(tmp_path)
    assert run.summary() is not None, output.read_text()
    assert run.config().system.workers == 2
    assert len(run.environments()) == 2
    assert f"SLURM job {number} is queued again" in output.read_text()


def found(folder: Path) -> list[RunFolder]:
    return [RunFolder(file.parent) for file in (folder / "runs").glob("*/config.json")]


def test_a_search_trains_by_slurm_what_it_would_train_here(here: Slurm, tmp_path: Path) -> None:
    def found(name: str, executor: Executor) -> list[tuple[dict[str, float], float | None]]:
        storage = f"sqlite:///{tmp_path / name}.sqlite3"
        find(storage, tmp_path / name, epochs=2, trials=2, executor=executor)
        return [(trial.params, trial.value) for trial in opened(storage).trials]

    there = OnSlurm(runs=tmp_path / "there", jobs=2, needs=Needs(), partition="short", minutes=10)
    assert found("there", there) == found("here", Pool(runs=tmp_path / "here", jobs=1))


def test_what_the_cluster_does_not_have_is_said_before_anything_is_queued(here: Slurm, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--partition long: the cluster has short"):
        OnSlurm(runs=tmp_path, jobs=None, needs=Needs(), partition="long")
    with pytest.raises(ValueError, match="SLURM gives whole GPUs"):
        OnSlurm(runs=tmp_path, jobs=None, needs=Needs(gpus=0.5))
    with pytest.raises(ValueError, match="a run asks for 64 cores, and no node has more than 2"):
        OnSlurm(runs=tmp_path, jobs=None, needs=Needs(cpus=64))
    with pytest.raises(ValueError, match="a run asks for a GPU, and no node of the cluster has one"):
        OnSlurm(runs=tmp_path, jobs=None, needs=Needs(gpus=1))
    with pytest.raises(ValueError, match="--minutes 1 leaves no time to train"):
        OnSlurm(runs=tmp_path, jobs=None, needs=Needs(), minutes=1)
    longer = OnSlurm(runs=tmp_path, jobs=None, needs=Needs(), minutes=120)  # than the partition allows
    before = set(here("squeue", "-h", "-o", "%i").split())  # a task whose run is done may take a moment to end
    with pytest.raises(ValueError, match="SLURM did not take the runs: "):
        longer.run([Job(key=0, config=long_run())], lambda event: None)
    assert set(here("squeue", "-h", "-o", "%i").split()) <= before
