"""What a search proposes: a function of its seed, the trial's number and what is known by then."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState


class NumberedSampler(optuna.samplers.BaseSampler):
    """Gives each trial a TPE sampler of its own, whose seed follows from the seed of the search and the trial's number.

    Numbers of a study are given once, so processes that share it propose different values without knowing of each
    other; one process alone proposes the same ones each time.
    """

    def __init__(self, seed: int) -> None:
        """Name the seed of the search."""
        self._seed = seed
        self._samplers: dict[int, optuna.samplers.TPESampler] = {}

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The settings that are proposed together."""
        return self._of(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Values of the settings that are proposed together."""
        return self._of(trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The value of one setting."""
        return self._of(trial).sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Called before a trial."""
        self._of(trial).before_trial(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Called after a trial."""
        self._of(trial).after_trial(study, trial, state, values)
        del self._samplers[trial.number]

    def _of(self, trial: FrozenTrial) -> optuna.samplers.TPESampler:
        if trial.number not in self._samplers:
            seed = seed_of(self._seed, trial.number)
            self._samplers[trial.number] = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        return self._samplers[trial.number]


def seed_of(seed: int, number: int) -> int:
    """32 bits that follow from the seed of a search and the number of a trial.

    >>> seed_of(0, 1) == seed_of(1, 0)
    False
    """
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:4])
