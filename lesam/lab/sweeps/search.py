"""A search for the best setting of one recipe, through an Optuna study that machines can share."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lesam.lab.config.checks import check
from lesam.lab.config.run import RunConfig, digest
from lesam.lab.execution.jobs import Event, Executor, Job, Progress
from lesam.lab.runs.repetitions import settings
from lesam.lab.runs.statistics import Spread
from lesam.lab.sweeps.grid import Build
from lesam.lab.sweeps.tuning import validation_accuracy

if TYPE_CHECKING:
    import optuna

ENDED = "ended"
"""Attribute of a trial: the runs that came to their end in it."""
ASKED = "asked"
"""Attribute of a study: what it was asked, see :func:`question`."""
RETRIED = "retried"
"""Attribute of a study: failed trials that were put back into the queue."""


@dataclass(frozen=True, slots=True)
class Range:
    """A setting to be searched: ``path=low:high``, ``path=low:high:log`` or ``path=a,b,c``."""

    path: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Range:
        """Read a range from the command line.

        >>> Range.parse("optimizer.sigma=0.05:1:log")
        Range(path='optimizer.sigma', low=0.05, high=1.0, log=True, choices=())
        """
        path, equals, values = text.partition("=")
        if equals and ":" in values:
            low, high, *rest = values.split(":")
            try:
                limits = float(low), float(high)
            except ValueError:
                limits = (1.0, 0.0)
            if limits[0] < limits[1] and rest in ([], ["log"]) and not (rest and limits[0] <= 0):
                return cls(path, *limits, log=bool(rest))
        elif equals and all(values.split(",")):
            return cls(path, choices=tuple(values.split(",")))
        raise ValueError(
            f"a search range is written section.field=low:high, low:high:log (low > 0) or a,b,c; got {text!r}"
        )

    @property
    def example(self) -> str:
        """An override with some value of the range, to see whether there is such a setting."""
        return f"{self.path}={self.choices[0] if self.choices else self.low}"

    def suggest(self, trial: optuna.Trial) -> str:
        """An override with the value that the study proposes."""
        if self.choices:
            return f"{self.path}={trial.suggest_categorical(self.path, self.choices)}"
        return f"{self.path}={trial.suggest_float(self.path, self.low, self.high, log=self.log)!r}"


def search(
    executor: Executor,
    build: Build,
    ranges: Sequence[Range],
    seeds: Sequence[int],
    *,
    trials: int,
    study_name: str | None = None,
    storage: str,
    runs: Path,
    sampler_seed: int = 0,
    progress: Progress = lambda event: None,
) -> optuna.Study:
    """Search for the setting with the best mean validation accuracy over the seeds, ``trials`` settings in all.

    The study lies in ``storage``; processes on other machines that ask the same there share its trials. By default its
    name follows from what is asked (settings, ranges, seeds); a study of a given name that was asked something else is
    refused. Trials that failed, or were left behind by a process of this machine that died, are queued again.
    """
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    example = build([item.example for item in ranges], seeds[0])
    _check_validation(example)
    check(example)
    asked = question(example, ranges, seeds)
    if storage.startswith("sqlite:"):
        runs.mkdir(parents=True, exist_ok=True)  # the study may lie beside the runs
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(
            study_name=study_name or f"{example.recipe}-{example.scale}-{example.method}-{asked}",
            storage=storage,
            direction="maximize",
            load_if_exists=True,
            sampler=optuna.samplers.TPESampler(seed=sampler_seed, constant_liar=True),
        )
    except (SQLAlchemyError, ValueError, ImportError) as error:
        raise ValueError(
            f"--storage {storage} cannot be opened ({str(error).partition(chr(10))[0]}); it is a URL such as "
            "sqlite:///study.sqlite3"
        ) from None
    if study.user_attrs.get(ASKED, asked) != asked:
        raise ValueError(
            f"the study {study.study_name!r} searches other ranges, settings or seeds than these: its trials do not "
            "answer this; give another --study, or leave it out"
        )
    study.set_user_attr(ASKED, asked)
    _requeue_orphans(study)
    _requeue_failures(study)
    scores: dict[int, list[float]] = {}
    open_trials: dict[int, optuna.Trial] = {}

    def proposals() -> Iterator[Job]:
        while _counted(study) < trials:
            trial = study.ask()
            trial.set_user_attr("owner", _owner(os.getpid()))
            open_trials[trial.number], scores[trial.number] = trial, []
            setting = tuple(item.suggest(trial) for item in ranges)
            for seed in seeds:
                yield Job(key=(trial.number, seed), config=build(setting, seed))

    def record(event: Event) -> object:
        number = event.job.key[0]
        if event.kind == "done" and event.summary is not None:
            scores[number].append(validation_accuracy(event.summary))
            if number in open_trials:
                ended = [*open_trials[number].user_attrs.get(ENDED, ()), _excerpt(event.summary)]
                open_trials[number].set_user_attr(ENDED, ended)
            if len(scores[number]) == len(seeds) and number in open_trials:
                study.tell(open_trials.pop(number), Spread.of(scores[number]).mean)
        elif event.kind == "failed" and number in open_trials:
            trial = open_trials.pop(number)
            trial.set_user_attr("error", event.error)
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return progress(event)

    executor.run(proposals(), record)
    return study


def summaries(study: optuna.Study) -> list[Mapping[str, Any]]:
    """What decides whether a run diverged, of every run that ended in the study."""
    return [ended for trial in study.get_trials(deepcopy=False) for ended in trial.user_attrs.get(ENDED, ())]


def _excerpt(summary: Mapping[str, Any]) -> dict[str, Any]:
    losses = {name: summary["last"].get(name) for name in ("train_loss", "perturbed_loss")}
    return {"folder": summary["folder"], "last": losses, "diverged_at": summary.get("diverged_at")}


def _check_validation(config: RunConfig) -> None:
    if not config.data.options.get("validation"):
        raise ValueError(
            "a search needs a validation split to choose on, never the test split: --set data.options.validation=0.1"
        )


def question(config: RunConfig, ranges: Sequence[Range], seeds: Sequence[int]) -> str:
    """Ten digits of what is asked: all settings but those that are searched, the ranges and the seeds."""
    searched = {item.path for item in ranges}
    fixed = {path: value for path, value in settings(config).items() if path not in searched}
    return digest({"fixed": fixed, "ranges": sorted(map(repr, ranges)), "seeds": sorted(seeds)})


def _counted(study: optuna.Study) -> int:
    """Trials that count against the total: finished, failed in this search, or being worked on."""
    import optuna

    done = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.RUNNING)
    retried = study.user_attrs.get(RETRIED, ())
    return sum(
        trial.state in done or ("error" in trial.user_attrs and trial.number not in retried)
        for trial in study.get_trials(deepcopy=False)
    )


def _requeue_failures(study: optuna.Study) -> None:
    """Put trials that failed when the search was last asked back into the queue: the cause may be gone."""
    retried = list(study.user_attrs.get(RETRIED, ()))
    for trial in study.get_trials(deepcopy=False):
        if "error" in trial.user_attrs and trial.number not in retried:
            study.enqueue_trial(trial.params)
            retried.append(trial.number)
    study.set_user_attr(RETRIED, retried)


def _requeue_orphans(study: optuna.Study) -> None:
    """Put trials of dead processes of this machine back into the queue."""
    import optuna

    running = (optuna.trial.TrialState.RUNNING,)
    for orphan in study.get_trials(deepcopy=False, states=running):
        host, _, pid = str(orphan.user_attrs.get("owner", ":0")).rpartition(":")
        if host == platform.node() and not _alive(int(pid)):
            study.tell(orphan.number, state=optuna.trial.TrialState.FAIL)
            study.enqueue_trial(orphan.params)


def _owner(pid: int) -> str:
    return f"{platform.node()}:{pid}"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
