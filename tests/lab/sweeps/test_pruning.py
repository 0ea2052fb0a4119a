"""Settings that are stopped early: those of Optuna's own loop over epochs, those of the paired t-test over seeds."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from lesam.lab.cli import main
from lesam.lab.execution.jobs import Event, Job, Progress
from lesam.lab.runs.folder import RunFolder
from lesam.lab.sweeps import sharing
from lesam.lab.sweeps.proposals import NumberedSampler
from lesam.lab.sweeps.pruning import Prune, clearly_worse, pruner_of
from lesam.lab.sweeps.search import outcome
from tests.lab.sweeps.searching import SIGMA, find

EPOCHS = 9
Curve = Callable[[float, int, int], float]
"""Validation accuracy of a setting, with a seed, after an epoch."""


class Known:
    """An executor whose runs have known curves, and that counts the epochs it was asked for."""

    speaks = False

    def __init__(self, curve: Curve, *, runs: Path | None = None, behind: int = 0) -> None:
        """With ``runs``, some epochs of each run are behind it, in its folder there."""
        self._curve, self._runs, self._behind = curve, runs, behind
        self.trained: dict[Any, int] = {}

    def run(self, jobs: Iterable[Job | None], progress: Progress) -> None:
        for job in jobs:
            if job is None:
                return
            self._train(job, progress)

    def _train(self, job: Job, progress: Progress) -> None:
        for epoch in range(EPOCHS):
            self.trained[job.key] = epoch + 1
            accuracy = self._curve(job.config.optimizer.sigma, job.config.seed, epoch)
            row = {"epoch": epoch, "validation_accuracy": accuracy, "train_loss": 1.0, "perturbed_loss": 1.0}
            if self._runs is not None and epoch < self._behind:
                folder = RunFolder.of(job.config, self._runs)
                folder.path.mkdir(exist_ok=True)
                folder.append(row, [])
            elif progress(Event(job=job, kind="epoch", row=row)) is False:
                progress(Event(job=job, kind="stopped"))
                return
        progress(Event(job=job, kind="done", summary={"last": row, "folder": job.config.folder_name}))


def rising(sigma: float, seed: int, epoch: int) -> float:
    """The higher sigma, the better, but not at every epoch: some settings begin badly."""
    return sigma * (epoch + 1) / EPOCHS + 0.2 * math.sin(40 * sigma) / (epoch + 1)


@pytest.mark.parametrize("prune", ["median", "hyperband"])
def test_over_epochs_the_trials_are_those_of_optuna_alone(prune: Prune, tmp_path: Path) -> None:
    study = find(
        f"journal:///{tmp_path / 'study'}", tmp_path, executor=Known(rising), epochs=EPOCHS, trials=20, prune=prune
    )
    peer = optuna.create_study(
        study_name="mine",
        direction="maximize",
        sampler=NumberedSampler(0),
        pruner=pruner_of(prune, epochs=EPOCHS),
    )

    def objective(trial: optuna.Trial) -> float:
        sigma = trial.suggest_float(SIGMA[0].path, SIGMA[0].low, SIGMA[0].high, log=True)
        for epoch in range(EPOCHS):
            trial.report(rising(sigma, 0, epoch), epoch)
            if epoch + 1 < EPOCHS and trial.should_prune():
                raise optuna.TrialPruned
        return rising(sigma, 0, EPOCHS - 1)

    peer.optimize(objective, n_trials=20)
    for ours, theirs in zip(study.trials, peer.trials, strict=True):
        assert (ours.params, ours.state, ours.intermediate_values) == (
            theirs.params,
            theirs.state,
            theirs.intermediate_values,
        )
    stopped = [trial for trial in study.trials if trial.state == TrialState.PRUNED]
    assert 3 <= len(stopped) < 20
    for trial in stopped:
        assert trial.user_attrs[sharing.STOPPED] == {"0": max(trial.intermediate_values) + 1}
    assert f"best of 20 settings on the validation split ({study.best_value * 100:.2f} %; {len(stopped)} were " in (
        outcome(study, [0])
    )
    assert f"stopped early, {len(stopped)} runs saved)" in outcome(study, [0])


@pytest.mark.parametrize("behind", [4, EPOCHS])
def test_the_pruner_knows_the_epochs_from_before_a_run_resumed(behind: int, tmp_path: Path) -> None:
    executor = Known(rising, runs=tmp_path, behind=behind)
    study = find(f"journal:///{tmp_path / 'study'}", tmp_path, executor=executor, epochs=EPOCHS, prune="median")
    (trial,) = study.trials
    sigma = trial.params[SIGMA[0].path]
    assert trial.intermediate_values == {epoch: rising(sigma, 0, epoch) for epoch in range(EPOCHS)}


def test_a_run_that_has_ended_is_not_stopped(tmp_path: Path) -> None:
    def late(sigma: float, seed: int, epoch: int) -> float:
        return 0.01 if epoch + 1 < EPOCHS else sigma

    executor = Known(late)
    study = find(
        f"journal:///{tmp_path / 'study'}", tmp_path, executor=executor, epochs=EPOCHS, trials=9, prune="median"
    )
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}


def test_without_pruning_everything_is_trained(tmp_path: Path) -> None:
    executor = Known(rising)
    study = find(f"journal:///{tmp_path / 'study'}", tmp_path, executor=executor, epochs=EPOCHS, trials=8, seeds=[0, 1])
    assert set(executor.trained.values()) == {EPOCHS}
    assert len(executor.trained) == 16
    assert all(trial.state == TrialState.COMPLETE for trial in study.trials)
    assert "stopped" not in outcome(study, [0, 1])


def test_over_seeds_a_setting_is_judged_after_two(tmp_path: Path) -> None:
    def of_seed(sigma: float, seed: int, epoch: int) -> float:
        return sigma + (0.01 * seed if sigma < 0.2 else 0.012 * seed)

    executor, seeds = Known(of_seed), [0, 1, 2, 3, 4]
    study = find(
        f"journal:///{tmp_path / 'study'}",
        *(tmp_path,),
        executor=executor,
        epochs=EPOCHS,
        trials=4,  # the median pruner waits for five
        seeds=seeds,
        prune="median",
    )
    best: dict[int, float] = {}
    states = []
    for trial in study.trials:
        scores = {seed: of_seed(trial.params[SIGMA[0].path], seed, 0) for seed in seeds}
        first = [scores[seed] - best[seed] for seed in (0, 1)] if best else [0.0, 0.0]
        spread = statistics.stdev(first)
        worse = spread > 1e-12 and statistics.fmean(first) + 6.313751514675 * spread / math.sqrt(2) < 0
        states.append(TrialState.PRUNED if worse else TrialState.COMPLETE)
        trained = [seed for number, seed in executor.trained if number == trial.number]
        assert trained == ([0, 1] if worse else seeds)
        if not worse and (not best or sum(scores.values()) > sum(best.values())):
            best = scores
    assert [trial.state for trial in study.trials] == states
    assert set(states) == {TrialState.PRUNED, TrialState.COMPLETE}
    number = states.count(TrialState.PRUNED)
    assert re.search(rf"; {number} (was|were) stopped early, {3 * number} runs saved\)", outcome(study, seeds))


def test_equal_differences_are_no_proof() -> None:
    """One image of a hundred with both seeds: no spread, and nothing that it would show."""
    assert not clearly_worse({0: 0.89, 1: 0.90}, {0: 0.90, 1: 0.91})
    assert not clearly_worse({0: 0.1}, {0: 0.9})
    assert not clearly_worse({0: 0.1, 1: 0.11}, {2: 0.9, 3: 0.9})


def test_the_command_counts_what_it_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rate that teaches nothing, against one that does."""
    small = ["--set", "schedule.epochs=8", "--set", "data.options.train_size=300"]
    asked = ["--search", "optimizer.lr=0.2,0.0000001", "--trials", "5", "--seeds", "0", "1", "2", "--prune", "median"]
    options = ["--method", "sgd", "--scale", "smoke", "--runs", str(tmp_path)]
    held_out = ["--set", "data.options.validation=0.3", "--set", "data.options.label_noise=0.0"]
    assert main(["sweep", "digits", *options, *small, *held_out, *asked]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.endswith("): --set optimizer.lr=0.2"), said
    assert "best of 5 settings on the validation split (" in said
    assert "; 1 was stopped early, 1 run saved): " in said, said


def test_a_grid_has_nothing_to_prune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["sweep", "digits", "--grid", "optimizer.sigma=0.1", "--prune", "median", "--runs", str(tmp_path)]
    assert main(asked) == 2
    assert "--prune is for --search" in capsys.readouterr().err
