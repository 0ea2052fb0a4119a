"""A fair search: the same trials for everyone, the choice by validation alone."""

from __future__ import annotations

from typing import Any

import pytest

from lesam.lab.config.run import RunConfig
from lesam.lab.sweeps.tuning import Entry, choose

RADII = (("optimizer.rho=0.1",), ("optimizer.rho=0.2",), ("optimizer.rho=0.4",))
SAM = Entry(name="SAM", recipe="digits", method="sam", settings=RADII)
SEEDS = (7, 8)


def answers(accuracies: dict[tuple[float, int], float | None]):
    """Summaries as run folders would give them, by radius and seed."""

    def summary_of(config: RunConfig) -> dict[str, Any] | None:
        key = (config.optimizer.rho, config.seed)  # type: ignore[attr-defined]
        if key not in accuracies:
            return None
        value = accuracies[key]
        # The weights of a diverged run are no numbers and name one class, which is often right.
        row = {"train_loss": None if value is None else 0.1, "validation_accuracy": 0.99 if value is None else value}
        return {"last": row, "diverged_at": 3 if value is None else None}

    return summary_of


def chosen(accuracies: dict[tuple[float, int], float | None]):
    return choose(SAM, answers(accuracies), scale="smoke", seeds=SEEDS)


def test_the_best_mean_over_the_seeds_wins():
    scores = {(0.1, 7): 0.9, (0.1, 8): 0.1, (0.2, 7): 0.6, (0.2, 8): 0.6, (0.4, 7): 0.5, (0.4, 8): 0.5}
    choice = chosen(scores)
    assert choice is not None
    assert choice.setting == ("optimizer.rho=0.2",)
    assert choice.score == pytest.approx(0.6)
    assert choice.scores[("optimizer.rho=0.1",)] == (0.9, 0.1)
    assert not choice.at_edge


def test_the_first_of_equals_wins_and_the_edge_is_said():
    choice = chosen({(rho, seed): 0.5 for rho in (0.1, 0.2, 0.4) for seed in SEEDS})
    assert choice is not None
    assert choice.setting == ("optimizer.rho=0.1",)
    assert choice.at_edge


def test_nothing_is_chosen_before_every_trial_is_finished():
    assert chosen({(0.1, 7): 0.9, (0.1, 8): 0.9, (0.2, 7): 0.6, (0.2, 8): 0.6, (0.4, 7): 0.5}) is None


def test_a_diverged_trial_scores_nothing():
    scores = {(0.1, 7): 0.3, (0.1, 8): 0.3, (0.2, 7): 0.5, (0.2, 8): None, (0.4, 7): 0.2, (0.4, 8): 0.2}
    choice = chosen(scores)
    assert choice is not None
    assert choice.setting == ("optimizer.rho=0.1",)
    assert choice.scores[("optimizer.rho=0.2",)] == (0.5, 0.0)


def test_every_trial_is_a_run_of_its_own_with_what_is_fixed():
    entry = Entry(name="", recipe="digits", method="sam", fixed=("schedule.epochs=7",), settings=RADII)
    trials = entry.trials(scale="smoke", seeds=SEEDS)
    assert len({config.fingerprint for _, config in trials}) == 6
    assert {config.schedule.epochs for _, config in trials} == {7}


def test_a_single_setting_needs_no_search():
    entry = Entry(name="", recipe="digits", method="sam", settings=(("optimizer.rho=0.3",),))
    assert entry.trials(scale="smoke", seeds=SEEDS) == []
    choice = choose(entry, answers({}), scale="smoke", seeds=SEEDS)
    assert choice is not None
    assert choice.setting == ("optimizer.rho=0.3",)
