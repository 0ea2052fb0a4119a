"""A fair contest: every entry gets the same number of trials, validation chooses, fresh seeds repeat the choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lesam.lab import recipes
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.repetitions import has_diverged
from lesam.lab.runs.statistics import Spread

SEARCH_SEEDS = (1000, 1001)
"""Of trials; no repetition has them."""

Setting = tuple[str, ...]
"""Overrides, as in ``("optimizer.rho=0.4",)``."""

Summary = Mapping[str, Any]
"""The ``summary.json`` of a finished run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What competes: a method on a recipe, what is fixed, and the settings among which validation chooses."""

    name: str
    recipe: str
    method: str
    fixed: Setting = ()
    settings: tuple[Setting, ...] = ((),)
    """A single one needs no search."""
    trial: Setting = ()
    """Changes of trials alone, where a repetition has nothing held out to choose on."""

    def config(self, setting: Setting, *, scale: str, seed: int) -> RunConfig:
        """The run of a setting with a seed."""
        built = recipes.build(self.recipe, method=self.method, scale=scale, seed=seed)
        return override(built, [*self.fixed, *setting])

    def trials(self, *, scale: str, seeds: Sequence[int]) -> list[tuple[Setting, RunConfig]]:
        """The runs of the search; none where there is nothing to choose."""
        if len(self.settings) == 1:
            return []
        tried = replace(self, fixed=(*self.fixed, *self.trial))
        return [(setting, tried.config(setting, scale=scale, seed=seed)) for setting in self.settings for seed in seeds]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The setting that won, and the validation accuracies of all of them."""

    setting: Setting
    scores: Mapping[Setting, tuple[float, ...]]

    @property
    def score(self) -> float | None:
        """Mean validation accuracy of the winner; None where nothing was searched."""
        found = self.scores.get(self.setting)
        return Spread.of(found).mean if found else None

    @property
    def at_edge(self) -> bool:
        """Whether a field of the winner has the smallest or largest of the values tried: a better one may lie beyond.

        Of a field with two values, the one that most settings have is where the search stood, and the other one an
        excursion: if that won, it was not followed any further.

        >>> rates = [("optimizer.lr=1", "optimizer.decay=0"), ("optimizer.lr=2", "optimizer.decay=0")]
        >>> rates += [("optimizer.lr=4", "optimizer.decay=0"), ("optimizer.lr=2", "optimizer.decay=1")]
        >>> [Choice(setting=of, scores=dict.fromkeys(rates, ())).at_edge for of in rates]
        [True, False, True, True]
        """
        tried: dict[str, Counter[float]] = {}
        for setting in self.scores:
            for name, value in _numbers(setting).items():
                tried.setdefault(name, Counter())[value] += 1
        chosen = _numbers(self.setting)
        return any(_at_edge(chosen.get(name), values) for name, values in tried.items())


def _at_edge(chosen: float | None, tried: Counter[float]) -> bool:
    if len(tried) < 2 or chosen not in (min(tried), max(tried)):
        return False
    return len(tried) > 2 or tried[chosen] < max(tried.values())


def _numbers(setting: Setting) -> dict[str, float]:
    """The fields of a setting that are numbers."""
    found = {}
    for name, _, value in (item.partition("=") for item in setting):
        with suppress(ValueError):
            found[name] = float(value)
    return found


def choose(
    entry: Entry, summary_of: Callable[[RunConfig], Summary | None], *, scale: str, seeds: Sequence[int]
) -> Choice | None:
    """The setting with the best mean validation accuracy, the first of equals; None until all trials are finished.

    A run that diverged scores 0.
    """
    if len(entry.settings) == 1:
        return Choice(setting=entry.settings[0], scores={})
    return choose_among(entry.trials(scale=scale, seeds=seeds), summary_of)


def choose_among(
    trials: Iterable[tuple[Setting, RunConfig]], summary_of: Callable[[RunConfig], Summary | None]
) -> Choice | None:
    """The same for trials that are given."""
    scores: dict[Setting, list[float]] = {}
    for setting, config in trials:
        summary = summary_of(config)
        if summary is None:
            return None
        scores.setdefault(setting, []).append(validation_accuracy(summary))
    return best(scores)


def best(scores: Mapping[Setting, Sequence[float]]) -> Choice:
    """The setting with the best mean, the first of equals.

    >>> best({("optimizer.rho=0.1",): [0.5, 0.7], ("optimizer.rho=0.2",): [0.6, 0.6]}).setting
    ('optimizer.rho=0.1',)
    """
    winner = max(scores, key=lambda setting: Spread.of(scores[setting]).mean)
    return Choice(setting=winner, scores={setting: tuple(of) for setting, of in scores.items()})


def words(setting: Setting) -> str:
    """A setting without the sections of its fields.

    >>> words(("optimizer.lr=0.1", "optimizer.weight_decay=0.01"))
    'lr 0.1, weight_decay 0.01'
    """
    return ", ".join(item.partition(".")[2].replace("=", " ") for item in setting)


def validation_accuracy(summary: Summary) -> float:
    """Validation accuracy of the last epoch; 0 for a run that diverged: weights that are no numbers name one class."""
    if has_diverged(dict(summary)):
        return 0.0
    accuracy = summary["last"].get("validation_accuracy")
    if accuracy is None:
        raise ValueError("a search needs a validation split to choose on: --set data.options.validation=0.1")
    return float(accuracy)


def finished_in(runs: Path) -> Callable[[RunConfig], Summary | None]:
    """Looks a run up among the folders of ``runs``."""
    return lambda config: RunFolder.of(config, runs).summary()
