"""Runs on a Ray cluster of two nodes, started for real on this machine; one of them disappears."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lesam.lab.config.run import RunConfig
from lesam.lab.execution import jobs
from lesam.lab.execution.jobs import Event, Executor, Job
from lesam.lab.execution.local import Pool
from lesam.lab.execution.on_ray import OnRay
from lesam.lab.execution.remote import Needs, Task
from lesam.lab.runs.folder import RunFolder
from tests.lab.execution.conftest import LONG, epochs, long_run, wait_for
from tests.lab.running import last_checkpoint
from tests.lab.sweeps.searching import find, opened

pytestmark = pytest.mark.xdist_group("ray")

Undisturbed = Callable[[RunConfig, Path], None]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes, the head without room for runs."""
    from ray.cluster_utils import Cluster

    # Workers that nobody asked for would import torch beside those that train.
    lean = {"prestart_worker_first_driver": False, "enable_worker_prestart": False}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": lean}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def nodes(cluster: Any) -> Iterator[list[Any]]:
    """Two nodes for one run each."""
    import ray

    added = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    yield added
    ray.shutdown()
    for node in added:
        if node in cluster.worker_nodes:
            cluster.remove_node(node, allow_graceful=False)


def started(config: RunConfig, runs: Path) -> int:
    return len(RunFolder.of(config, runs).environments())


def test_a_node_that_disappears_and_a_worker_that_is_killed_lose_nothing(
    cluster: Any, nodes: list[Any], tmp_path: Path, undisturbed: Undisturbed
) -> None:
    first, second, failing = long_run(), long_run(seed=1), long_run("data.options.validation=0.99", seed=2)
    ended: dict[Any, list[Event]] = {}
    begun: set[Any] = set()

    def progress(event: Event) -> None:
        if event.kind == "epoch" and event.row is not None and event.row["epoch"] >= 15:
            begun.add(event.job.key)
            if begun == {"first", "second"} and len(nodes) == 2:
                cluster.remove_node(nodes.pop(), allow_graceful=False)
        elif event.kind not in ("started", "epoch"):
            ended.setdefault(event.job.key, []).append(event)

    wanted = [Job(key="first", config=first), Job(key="second", config=second), Job(key="failing", config=failing)]
    OnRay(address=cluster.address, runs=tmp_path, jobs=None, needs=Needs()).run(wanted, progress)
    assert {key: [event.kind for event in events] for key, events in ended.items()} == {
        "first": ["done"],
        "second": ["done"],
        "failing": ["failed"],  # by its own fault, so once
    }
    assert ended["failing"][0].error.startswith("cannot choose 100 images")
    assert sorted([started(first, tmp_path), started(second, tmp_path)]) == [1, 2]
    for run in (first, second):
        undisturbed(run, tmp_path)


def test_two_drivers_train_a_run_once_and_the_killed_worker_of_one_resumes(
    cluster: Any, nodes: list[Any], tmp_path: Path, undisturbed: Undisturbed
) -> None:
    run = long_run("optimizer.sigma=0.3")
    changes = [part for change in LONG for part in ("--set", change)]
    sweep = ["sweep", "digits", "--scale", "smoke", *changes, "--grid", "optimizer.sigma=0.3", "--runs", str(tmp_path)]
    command = [sys.executable, "-m", "lesam", *sweep, "--on", f"ray:{cluster.address}"]
    with ExitStack() as stack:
        drivers = [stack.enter_context(driven(command)) for _ in range(2)]
        wait_for(lambda: epochs(run, tmp_path) > 15)
        os.kill(holder(RunFolder.of(run, tmp_path).path / ".lock"), signal.SIGKILL)
        outputs = [driver.communicate(timeout=200)[0] for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], outputs
    assert started(run, tmp_path) == 2
    undisturbed(run, tmp_path)


def test_a_task_that_its_machine_tells_to_end_is_sent_again_and_resumes(
    cluster: Any, nodes: list[Any], tmp_path: Path, undisturbed: Undisturbed
) -> None:
    run = long_run()
    kinds: list[str] = []

    def progress(event: Event) -> None:
        if event.row is not None and event.row["epoch"] >= 15 and "told" not in kinds:
            kinds.append("told")
            os.kill(holder(RunFolder.of(run, tmp_path).path / ".lock"), signal.SIGTERM)
        elif event.kind not in ("started", "epoch"):
            kinds.append(event.kind)

    OnRay(address=cluster.address, runs=tmp_path, jobs=None, needs=Needs()).run([Job(key=0, config=run)], progress)
    assert kinds == ["told", "done"]
    assert started(run, tmp_path) == 2
    undisturbed(run, tmp_path)


def test_a_run_that_another_command_is_training_takes_no_place_in_the_cluster(
    cluster: Any, nodes: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PAUSE", 0.1)
    held, other = long_run("schedule.epochs=1"), long_run("schedule.epochs=1", seed=1)
    sent: list[int] = []

    class Counting(OnRay):
        def send(self, tasks: Sequence[Task]) -> list[Hashable]:
            sent.extend(task.config.seed for task in tasks)
            return super().send(tasks)

    done: list[int] = []
    with ExitStack() as lock:
        lock.enter_context(RunFolder.of(held, tmp_path).lock())

        def progress(event: Event) -> None:
            if event.kind == "done":
                done.append(event.job.config.seed)
                lock.close()  # the other command ends, without a result

        executor = Counting(address=cluster.address, runs=tmp_path, jobs=None, needs=Needs())
        executor.run([Job(key=run.seed, config=run) for run in (held, other)], progress)
    assert (sent, done) == ([1, 0], [1, 0])


@contextmanager
def driven(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive the test, whatever happens to it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def holder(lock: Path) -> int:
    """The process that holds a lock; others may have the file open, to ask for it."""
    number = str(lock.stat().st_ino)
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    (process,) = {int(line[4]) for line in lines if line[1:2] == ["FLOCK"] and line[5].rpartition(":")[2] == number}
    return process


def test_a_search_trains_on_the_cluster_what_it_would_train_here(
    cluster: Any, nodes: list[Any], tmp_path: Path
) -> None:
    def found(name: str, executor: Executor) -> list[tuple[dict[str, float], float | None]]:
        storage = f"sqlite:///{tmp_path / name}.sqlite3"
        find(storage, tmp_path / name, epochs=2, trials=3, executor=executor)
        return [(trial.params, trial.value) for trial in opened(storage).trials]

    there = OnRay(address=cluster.address, runs=tmp_path / "there", jobs=2, needs=Needs())
    assert found("there", there) == found("here", Pool(runs=tmp_path / "here", jobs=1))


def test_a_run_that_is_no_longer_wanted_is_stopped_with_a_checkpoint(
    cluster: Any, nodes: list[Any], tmp_path: Path
) -> None:
    run = long_run()
    kinds: list[str] = []

    def progress(event: Event) -> bool:
        kinds.append(event.kind)
        return event.row is None or event.row["epoch"] < 15

    OnRay(address=cluster.address, runs=tmp_path, jobs=None, needs=Needs()).run([Job(key=0, config=run)], progress)
    assert kinds[-1] == "stopped"
    folder = RunFolder.of(run, tmp_path)
    assert folder.summary() is None
    assert last_checkpoint(folder).epoch >= 15


def test_what_the_cluster_does_not_have_is_said_before_anything_is_sent(
    cluster: Any, nodes: list[Any], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"a run asks for 8 CPU, and no node of the cluster has more than 1"):
        OnRay(address=cluster.address, runs=tmp_path, jobs=None, needs=Needs(cpus=8))


def test_an_address_where_no_cluster_is_ends_in_a_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"--on ray:{address}: there is no such cluster .*refused"):
            OnRay(address=address, runs=tmp_path, jobs=None, needs=Needs())
