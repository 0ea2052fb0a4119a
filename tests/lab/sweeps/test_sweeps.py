"""Sweeps: every setting is trained, what fails is reported, what dies does not take the rest along, all resumes."""

from __future__ import annotations

import multiprocessing
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from lesam.lab import recipes
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.execution.jobs import Event
from lesam.lab.execution.local import Pool
from lesam.lab.runs.folder import RunFolder, find_runs
from lesam.lab.sweeps import grid, leases, search
from lesam.lab.sweeps.ranges import Range

SHORT = ("schedule.epochs=1", "data.options.train_size=100")


def build(setting: Sequence[str], seed: int) -> RunConfig:
    config = recipes.build("digits", method="lesam", scale="smoke", seed=seed)
    return override(config, [*SHORT, *setting])


def test_a_grid_is_the_product_of_its_axes() -> None:
    assert grid.parse_grid(["a.b=1,2", "c.d=x,y,z"]) == [
        (f"a.b={first}", f"c.d={second}") for first in "12" for second in "xyz"
    ]


def test_failed_runs_are_reported_and_the_rest_is_trained(tmp_path: Path) -> None:
    settings = grid.parse_grid(["optimizer.sigma=0.1,0.2", "data.options.validation=0.1,0.99"])
    events: list[Event] = []
    outcomes = grid.grid(Pool(runs=tmp_path, jobs=2), build, settings, [0, 1], events.append)
    assert [(outcome.setting, outcome.seed) for outcome in outcomes] == [(s, n) for s in settings for n in (0, 1)]
    for outcome in outcomes:
        if "data.options.validation=0.99" in outcome.setting:
            assert outcome.summary is None
            assert outcome.error.count("\n") == 0
            assert outcome.error.startswith("cannot choose 100 images")
        else:
            assert outcome.summary is not None
            assert RunFolder.of(outcome.config, tmp_path).summary() == outcome.summary
    started = [len(run.environments()) for run in find_runs([tmp_path]) if run.summary()]
    grid.grid(Pool(runs=tmp_path, jobs=1), build, settings, [0, 1])
    assert [len(run.environments()) for run in find_runs([tmp_path]) if run.summary()] == started == [1] * 4


def test_a_mistake_in_one_setting_shows_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"optimizer\.sigma must be of type float"):
        grid.grid(Pool(runs=tmp_path, jobs=1), build, [("optimizer.sigma=0.1",), ("optimizer.sigma=much",)], [0])
    assert not list(tmp_path.iterdir())


def test_a_worker_that_is_killed_again_and_again_costs_its_own_run_only(tmp_path: Path) -> None:
    deaths: list[Event] = []

    def kill(event: Event) -> None:
        if event.kind == "started" and "optimizer.sigma=0.2" in event.job.key[0]:
            deaths.append(event)
            for worker in multiprocessing.active_children():
                worker.kill()

    settings = grid.parse_grid(["schedule.epochs=50", "optimizer.sigma=0.1,0.2,0.3"])
    outcomes = grid.grid(Pool(runs=tmp_path, jobs=1), build, settings, [0], kill)
    assert [outcome.summary is not None for outcome in outcomes] == [True, False, True]
    assert "exit code -9" in outcomes[1].error
    assert len(deaths) == 6  # it is given five more chances


def test_a_search_is_resumed_and_shared(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    storage = f"sqlite:///{tmp_path / 'study.sqlite3'}"
    ranges = [Range.parse("optimizer.sigma=0.05:0.5:log"), Range.parse("optimizer.momentum=0.8,0.9")]

    def go(trials: int) -> optuna.Study:  # type: ignore[name-defined]
        return search.search(
            Pool(runs=tmp_path / "runs", jobs=2),
            build,
            ranges,
            [0, 1],
            trials=trials,
            study_name="s",
            storage=storage,
            runs=tmp_path / "runs",
        )

    first = go(2)
    values = {trial.number: trial.value for trial in first.trials}
    assert len(values) == 2
    # A process that died in the middle of a trial: its setting is tried again and not counted twice.
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    lost = first.ask()
    lost.set_user_attr(leases.LEASE, {"owner": f"{platform.node()}:{dead.pid}:0", "until": time.time() + 1e6})
    chosen = lost.suggest_float("optimizer.sigma", 0.05, 0.5, log=True)
    lost.suggest_categorical("optimizer.momentum", ("0.8", "0.9"))
    second = go(4)
    complete = [trial for trial in second.trials if trial.state.name == "COMPLETE"]
    assert len(complete) == 4
    assert chosen in [trial.params["optimizer.sigma"] for trial in complete]
    assert {trial.number: trial.value for trial in complete if trial.number in values} == values
    for trial in complete:
        setting = [f"{path}={value!r}".replace("'", "") for path, value in trial.params.items()]
        summaries = [RunFolder.of(build(setting, seed), tmp_path / "runs").summary() for seed in (0, 1)]
        accuracies = [summary["last"]["validation_accuracy"] for summary in summaries if summary is not None]
        assert trial.value == pytest.approx(sum(accuracies) / 2)


def test_a_search_never_chooses_on_the_test_split(tmp_path: Path) -> None:
    ranges = [Range.parse("optimizer.sigma=0.1:0.2")]
    with pytest.raises(ValueError, match="validation split"):
        search.search(
            Pool(runs=tmp_path, jobs=1),
            lambda setting, seed: build([*setting, "data.options.validation=0"], seed),
            *(ranges, [0]),
            trials=1,
            study_name="s",
            storage=f"sqlite:///{tmp_path / 's.sqlite3'}",
            runs=tmp_path,
        )


def found(
    tmp_path: Path, *ranges: str, changes: Sequence[str] = (), seeds: Sequence[int] = (0,), trials: int = 2, **more
):
    storage = f"sqlite:///{tmp_path / 'study.sqlite3'}"
    parsed = [Range.parse(text) for text in ranges]
    kept = [*changes, "data.options.validation=0.1"]
    return search.search(
        Pool(runs=tmp_path, jobs=1),
        lambda setting, seed: build([*kept, *setting], seed),
        parsed,
        seeds,
        trials=trials,
        storage=storage,
        runs=tmp_path,
        **more,
    )


def test_another_question_is_another_study(tmp_path: Path) -> None:
    asked = [
        found(tmp_path, "optimizer.sigma=0.1:0.2", trials=1),
        found(tmp_path, "optimizer.sigma=0.1:0.3", trials=1),
        found(tmp_path, "optimizer.sigma=0.1:0.2", trials=1, changes=["optimizer.lr=0.01"]),
        found(tmp_path, "optimizer.sigma=0.1:0.2", trials=1, seeds=(1,)),
    ]
    assert len({study.study_name for study in asked}) == 4
    again = found(tmp_path, "optimizer.sigma=0.1:0.2", trials=2)
    assert again.study_name == asked[0].study_name
    assert len(again.trials) == 2


def test_a_named_study_is_refused_for_another_question(tmp_path: Path) -> None:
    found(tmp_path, "optimizer.sigma=0.1:0.2", trials=1, study_name="mine")
    with pytest.raises(ValueError, match="'mine' searches other ranges"):
        found(tmp_path, "optimizer.lr=0.1:0.2", trials=1, study_name="mine")


def test_failed_trials_are_tried_again_by_the_next_command(tmp_path: Path) -> None:
    def failing(setting: Sequence[str], seed: int) -> RunConfig:
        return build(["data.options.validation=0.99", *setting], seed)

    def ask(make) -> list[str]:
        study = search.search(
            Pool(runs=tmp_path, jobs=1),
            make,
            [Range.parse("optimizer.sigma=0.1:0.2")],
            [0],
            trials=1,
            study_name="mine",
            storage=f"sqlite:///{tmp_path / 'study.sqlite3'}",
            runs=tmp_path,
        )
        return [trial.state.name for trial in study.trials]

    assert ask(failing) == ["FAIL"]
    assert ask(failing) == ["FAIL", "FAIL"]


def test_a_radius_below_zero_in_a_grid_shows_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"optimizer\.sigma must be a number >= 0, got -1\.0"):
        grid.grid(Pool(runs=tmp_path, jobs=1), build, [("optimizer.sigma=0.1",), ("optimizer.sigma=-1",)], [0])
    assert not list(tmp_path.iterdir())
