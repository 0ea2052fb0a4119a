"""A search that processes share: no setting twice, no trial too many, none lost with its machine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from lesam.lab.execution.jobs import Event
from lesam.lab.runs.folder import RunFolder, find_runs
from lesam.lab.sweeps import sharing
from lesam.lab.sweeps.leases import LEASE, Leases, host_of, is_free
from tests.lab.running import assert_same_run
from tests.lab.sweeps.searching import SIGMA, driver, find, grpc_server, opened, until


def assert_shared(storage: str, runs: Path, total: int) -> list[optuna.trial.FrozenTrial]:
    """All trials are finished, each with a setting of its own that was trained once; others were withdrawn in time."""
    trials = opened(storage).trials
    finished = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert len(finished) == total
    assert len({trial.params["optimizer.sigma"] for trial in finished}) == total
    assert len({trial.user_attrs[LEASE]["owner"] for trial in finished}) == 2
    others = [trial.user_attrs for trial in trials if trial.state != TrialState.COMPLETE]
    assert all(sharing.WITHDRAWN in attributes and sharing.ENDED not in attributes for attributes in others)
    starts = [len(RunFolder(path.parent).environments()) for path in runs.glob("*/config.json")]
    assert starts == [1] * total
    return finished


def test_two_machines_share_a_study_in_a_journal(tmp_path: Path) -> None:
    url, runs = f"journal:///{tmp_path / 'study'}", tmp_path / "runs"
    drivers = [driver(url, runs, f"node-{number}", epochs=20, trials=8) for number in range(2)]
    for process in drivers:
        process.join(120)
        assert process.exitcode == 0
    finished = assert_shared(url, runs, 8)
    assert {host_of(trial) for trial in finished} == {"node-0", "node-1"}


@pytest.fixture(params=["sqlite", "grpc", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "postgresql":
        yield request.getfixturevalue("postgresql")
    elif request.param == "grpc":
        with grpc_server(tmp_path) as url:
            yield url
    else:
        yield f"sqlite:///{tmp_path / 'study.sqlite3'}"


def test_two_drivers_share_a_study_in_a_database(database: str, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(find, database, tmp_path / "runs", epochs=2, trials=6) for _ in range(2)]
    for each in asked:
        each.result()
    assert_shared(database, tmp_path / "runs", 6)


def test_a_server_that_ends_is_said_in_a_sentence(tmp_path: Path) -> None:
    with ExitStack() as servers:
        url = servers.enter_context(grpc_server(tmp_path))

        def end(event: Event) -> None:
            if event.kind == "epoch":
                servers.close()

        with pytest.raises(ValueError, match=rf"--storage {url} cannot be used: its server says: ") as caught:
            find(url, tmp_path / "runs", epochs=2, progress=end)
    assert "\n" not in str(caught.value)
    assert len(find_runs([tmp_path / "runs"])) == 1


def test_proposals_follow_from_the_seed_and_the_number(tmp_path: Path) -> None:
    def values(name: str, seed: int, handles: int) -> list[float]:
        """Fourteen proposals, the last ones modelled on the first ten, by so many processes in turn."""
        studies = [opened(f"journal:///{tmp_path / name}", seed) for _ in range(handles)]
        found = []
        for number in range(14):
            study = studies[number % handles]
            trial = study.ask()
            SIGMA[0].suggest(trial)
            found.append(trial.params["optimizer.sigma"])
            study.tell(trial, -found[-1])
        return found

    alone = values("a", 0, 1)
    assert len(set(alone)) == 14
    assert values("b", 0, 1) == values("c", 0, 2) == alone
    assert not set(values("d", 1, 1)) & set(alone)


def test_no_trial_is_one_too_many(tmp_path: Path) -> None:
    url = f"journal:///{tmp_path / 'study'}"
    studies = [opened(url) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        asked = list(threads.map(lambda study: sharing.ask(study, 3, Leases()), studies))
    assert sum(trial is not None for trial in asked) == 3
    assert sharing.counted(studies[0]) == 3
    assert sharing.ask(opened(url), 3, Leases()) is None


def test_an_expired_trial_is_queued_once(tmp_path: Path) -> None:
    url = f"journal:///{tmp_path / 'study'}"
    studies = [opened(url) for _ in range(8)]
    lost = studies[0].ask()
    SIGMA[0].suggest(lost)
    lost.set_user_attr(LEASE, {"owner": "gone:1:0", "until": time.time() + 1e6})
    sharing.take_over(studies[1], Leases())
    assert [trial.state for trial in studies[1].trials] == [TrialState.RUNNING]
    lost.set_user_attr(LEASE, {"owner": "gone:1:0", "until": time.time() - 1})
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda study: sharing.take_over(study, Leases()), studies))
    sharing.give_back(studies[4], 0)  # as a process does that looked before the others had told
    assert [trial.state for trial in studies[0].trials] == [TrialState.FAIL, TrialState.WAITING]
    resumed = sharing.ask(studies[2], 1, Leases())
    assert resumed is not None
    assert SIGMA[0].suggest(resumed) == SIGMA[0].suggest(lost)
    assert sharing.ask(studies[3], 1, Leases()) is None


def test_of_two_that_resume_the_same_trial_the_later_withdraws(tmp_path: Path) -> None:
    study = opened(f"journal:///{tmp_path / 'study'}")
    failed = study.ask()
    SIGMA[0].suggest(failed)
    failed.set_user_attr(sharing.ERROR, "no memory")
    study.tell(failed, state=TrialState.FAIL)
    before = study.get_trials(deepcopy=False)
    sharing.queue_failures(study)
    sharing._queue(study, before[0])  # as a second process does that looked at the same moment
    first, second = (sharing.ask(study, 2, Leases()) for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.number, second.number) == (1, 3)
    assert first.user_attrs[sharing.RESUMES] == 0
    assert sharing.RESUMES not in second.user_attrs
    assert sharing.counted(study) == 2


def test_a_lease_is_renewed_while_nothing_happens(tmp_path: Path) -> None:
    study = opened(f"journal:///{tmp_path / 'study'}")
    with Leases(0.3) as leases:
        trial = study.ask()
        leases.hold(trial)
        first = study.trials[0].user_attrs[LEASE]["until"]
        until(lambda: study.trials[0].user_attrs[LEASE]["until"] > first + 0.6)
        assert not is_free(study.trials[0], Leases(0.3))
    time.sleep(0.4)
    other = study.trials[0]
    other.user_attrs[LEASE]["owner"] = "elsewhere:1:0"
    assert is_free(other, Leases(0.3))


def test_runs_of_a_machine_that_was_lost_resume_bit_for_bit(tmp_path: Path) -> None:
    """Its driver is killed; nobody but the lease tells the other machine."""
    url, runs, epochs = f"journal:///{tmp_path / 'study'}", tmp_path / "runs", 40
    lost = driver(url, runs, "node-a", epochs=epochs, checkpoint_every=1, lease=2.0)
    rows: list[Any] = []

    def some_epochs() -> bool:
        rows[:] = [row for path in runs.glob("*/config.json") for row in RunFolder(path.parent).metrics()]
        return len(rows) >= 4  # the checkpoint of an epoch follows its row

    until(some_epochs)
    lost.kill()
    lost.join()
    study = opened(url)
    ours = Leases(2)
    sharing.take_over(study, ours)
    assert [trial.state for trial in study.trials] == [TrialState.RUNNING]
    until(lambda: is_free(study.trials[0], ours))
    until(lambda: not any(RunFolder(path.parent).busy() for path in runs.glob("*/config.json")))
    finished = find(url, runs, epochs=epochs)
    assert [trial.state for trial in finished.trials] == [TrialState.FAIL, TrialState.COMPLETE]
    assert finished.trials[1].params == finished.trials[0].params
    (config,) = (RunFolder(path.parent).config() for path in runs.glob("*/config.json"))
    resumed = RunFolder.of(config, runs)
    assert len(resumed.environments()) == 2
    assert resumed.metrics()[0] == rows[0]  # with its clocks: that epoch was not trained again
    whole = tmp_path / "uninterrupted"
    find(f"journal:///{tmp_path / 'another'}", whole, epochs=epochs)
    assert_same_run(resumed, RunFolder.of(config, whole))


def test_a_driver_whose_trial_was_taken_over_leaves_it(tmp_path: Path) -> None:
    url = f"journal:///{tmp_path / 'study'}"
    stopped = Counter[str]()

    def take(event: Event) -> None:
        stopped[event.kind] += 1
        if event.kind == "epoch" and event.job.key[0] == 0 and stopped["epoch"] == 1:
            sharing.give_back(opened(url), 0)  # as another machine does when the lease has expired

    study = find(url, tmp_path / "runs", epochs=40, progress=take, lease=0.3)
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.COMPLETE]
    assert study.trials[1].user_attrs[sharing.RESUMES] == 0
    assert stopped["stopped"] == 1
    assert stopped["done"] == 1


def test_a_driver_that_is_stopped_gives_its_trials_back(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if event.kind == "epoch":
            raise KeyboardInterrupt

    url = f"journal:///{tmp_path / 'study'}"
    with pytest.raises(KeyboardInterrupt):
        find(url, tmp_path / "runs", epochs=40, progress=stop)
    assert [trial.state for trial in opened(url).trials] == [TrialState.FAIL, TrialState.WAITING]
