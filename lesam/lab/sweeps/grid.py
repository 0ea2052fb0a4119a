"""Every combination of some settings of one recipe, each a run folder of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lesam.lab.config.checks import check
from lesam.lab.config.run import RunConfig
from lesam.lab.execution.jobs import Event, Executor, Job, Progress

Build = Callable[[Sequence[str], int], RunConfig]
"""Makes the configuration of a run from overrides and a seed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of one run of a sweep."""

    setting: tuple[str, ...]
    seed: int
    config: RunConfig
    summary: Mapping[str, Any] | None
    error: str = ""


def parse_grid(axes: Sequence[str]) -> list[tuple[str, ...]]:
    """All combinations of ``"path=value,value"`` axes.

    >>> parse_grid(["optimizer.sigma=0.2,0.3", "optimizer.rho_max=none,0.4"])[1]
    ('optimizer.sigma=0.2', 'optimizer.rho_max=0.4')
    """
    choices = []
    for axis in axes:
        path, equals, values = axis.partition("=")
        if not equals or not all(values.split(",")):
            raise ValueError(f"a grid axis is written section.field=value,value, got {axis!r}")
        choices.append([f"{path}={value}" for value in values.split(",")])
    return list(itertools.product(*choices))


def grid(
    executor: Executor,
    build: Build,
    settings: Sequence[tuple[str, ...]],
    seeds: Sequence[int],
    progress: Progress = lambda event: None,
) -> list[Outcome]:
    """Train every setting with every seed; finished runs are not repeated, failures do not stop the rest."""
    pairs = list(itertools.product(settings, seeds))
    configs = {pair: build(*pair) for pair in pairs}
    for config in configs.values():  # a mistake in any setting shows before anything is trained
        check(config)
    outcomes: dict[Any, Outcome] = {}

    def record(event: Event) -> object:
        if event.kind in ("done", "failed"):
            setting, seed = event.job.key
            outcomes[event.job.key] = Outcome(
                setting=setting,
                seed=seed,
                config=event.job.config,
                summary=event.summary,
                error=event.error,
            )
        return progress(event)

    executor.run([Job(key=pair, config=config) for pair, config in configs.items()], record)
    return [outcomes[pair] for pair in pairs]
