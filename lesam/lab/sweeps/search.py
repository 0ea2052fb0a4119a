"""A search for the best setting of one recipe, through an Optuna study that machines can share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lesam.lab.config.checks import check
from lesam.lab.config.run import RunConfig, digest
from lesam.lab.execution.jobs import Event, Executor, Job, Progress
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.repetitions import settings
from lesam.lab.runs.statistics import Spread
from lesam.lab.sweeps import history, leases, sharing
from lesam.lab.sweeps.grid import Build
from lesam.lab.sweeps.pruning import JUDGED_AFTER, Prune, clearly_worse, pruner_of
from lesam.lab.sweeps.ranges import Range
from lesam.lab.sweeps.storage import explained, open_study
from lesam.lab.sweeps.tuning import validation_accuracy

if TYPE_CHECKING:
    import optuna

ASKED = "asked"
"""Attribute of a study: what it was asked, see :func:`question`."""


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
    prune: Prune = "none",
    lease: float = leases.SECONDS,
    progress: Progress = lambda event: None,
) -> optuna.Study:
    """Search for the setting with the best mean validation accuracy over the seeds, ``trials`` settings in all.

    The study lies in ``storage``; processes on other machines that ask the same there share its trials. By
    default its name follows from what is asked (settings, ranges, seeds); a study of a given name that was asked
    something else is refused. Trials that failed, or whose owner did not renew its lease, are queued again. The history
    is written beside the runs, see :mod:`lesam.lab.sweeps.history`.

    Args:
        executor: Trains the runs.
        build: Makes the configuration of a run.
        ranges: What is searched.
        seeds: Of the runs of each setting.
        trials: Settings, of all processes that share the study and all earlier calls.
        study_name: Of the study.
        storage: URL where it lies, see :mod:`lesam.lab.sweeps.storage`.
        runs: Where run folders lie.
        sampler_seed: Proposals follow from it, the trial's number and what is known by then.
        prune: Which settings are stopped early, see :mod:`lesam.lab.sweeps.pruning`.
        lease: Seconds after which a trial that nobody speaks for is taken over.
        progress: Is called with every event.
    """
    import optuna

    from lesam.lab.sweeps.proposals import NumberedSampler

    example = build([item.example for item in ranges], seeds[0])
    _check_validation(example)
    check(example)
    asked = question(example, ranges, seeds)
    if storage.startswith(("sqlite:", "journal:")):
        runs.mkdir(parents=True, exist_ok=True)  # the study may lie beside the runs
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = open_study(
        storage,
        name=study_name or f"{example.recipe}-{example.scale}-{example.method}-{asked}",
        sampler=NumberedSampler(sampler_seed),
        pruner=pruner_of(prune, epochs=example.schedule.epochs),
    )
    with explained(storage), leases.Leases(lease) as held:
        if study.user_attrs.get(ASKED, asked) != asked:
            raise ValueError(
                f"the study {study.study_name!r} searches other ranges, settings or seeds than these: its trials do "
                "not answer this; give another --study, or leave it out"
            )
        study.set_user_attr(ASKED, asked)
        sharing.take_over(study, held)
        sharing.queue_failures(study)
        driver = _Driver(study, build, ranges, seeds, trials, runs, held, pruned=prune != "none", progress=progress)
        driver.finish(executor)
    return study


def question(config: RunConfig, ranges: Sequence[Range], seeds: Sequence[int]) -> str:
    """Ten digits of what is asked: all settings but those that are searched, the ranges and the seeds."""
    searched = {item.path for item in ranges}
    fixed = {path: value for path, value in settings(config).items() if path not in searched}
    return digest({"fixed": fixed, "ranges": sorted(map(repr, ranges)), "seeds": sorted(seeds)})


def outcome(study: optuna.Study, seeds: Sequence[int]) -> str:
    """The best setting, and what was stopped early, in a line."""
    from optuna.trial import TrialState

    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    stopped = study.get_trials(deepcopy=False, states=(TrialState.PRUNED,))
    running = len(study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))
    elsewhere = f"; not yet finished by other processes: {running}" if running else ""
    if not finished:
        raise ValueError(f"no trial of the study {study.study_name!r} finished{elsewhere}")
    setting = " ".join(f"--set {path}={value}" for path, value in study.best_params.items())
    saved = sum(len(seeds) - len(sharing.accuracies(trial)) for trial in stopped)
    were, plural = ("was" if len(stopped) == 1 else "were"), ("" if saved == 1 else "s")
    notes = f"; {len(stopped)} {were} stopped early, {saved} run{plural} saved" if stopped else ""
    best = f"best of {len(finished) + len(stopped)} settings on the validation split"
    return f"{best} ({study.best_value * 100:.2f} %{notes}{elsewhere}): {setting}"


def _check_validation(config: RunConfig) -> None:
    if not config.data.options.get("validation"):
        raise ValueError(
            "a search needs a validation split to choose on, never the test split: --set data.options.validation=0.1"
        )


@dataclass(slots=True)
class _Open:
    """A trial that this process works on."""

    trial: optuna.Trial
    setting: tuple[str, ...]
    ready: list[int]
    """Seeds that may be trained."""
    held_back: list[int]
    """Seeds that are trained only if the setting is not clearly worse over the first ones."""
    ended: dict[int, dict[str, Any]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    """Of runs that are being trained."""
    reported: set[int] = field(default_factory=set)
    """Epochs of the first seed that the pruner knows."""

    @property
    def accuracies(self) -> dict[int, float]:
        return {seed: run["accuracy"] for seed, run in self.ended.items()}


class _Driver:
    """Asks the study for trials, has their runs trained, and tells it what came out."""

    def __init__(
        self,
        study: optuna.Study,
        build: Build,
        ranges: Sequence[Range],
        seeds: Sequence[int],
        total: int,
        runs: Path,
        held: leases.Leases,
        *,
        pruned: bool,
        progress: Progress,
    ) -> None:
        self._study, self._build, self._ranges, self._seeds, self._total = study, build, ranges, list(seeds), total
        self._runs, self._leases, self._pruned, self._progress = runs, held, pruned, progress
        self._open: dict[int, _Open] = {}
        self._unwanted: set[int] = set()
        """Trials whose runs are stopped at their next epoch."""

    def finish(self, executor: Executor) -> None:
        """Work until the study has all its trials; others may still work on theirs."""
        try:
            while sharing.counted(self._study) < self._total:
                executor.run(self._jobs(), self._record)
                sharing.take_over(self._study, self._leases)
        except BaseException:
            with suppress(Exception):  # the storage itself may be what fails
                for opened in list(self._open.values()):  # others need not wait until the leases end
                    self._close(opened)
                    sharing.give_back(self._study, opened.trial)
                self._write_history()
            raise
        self._write_history()

    def _jobs(self) -> Iterator[Job | None]:
        """Runs to train, as there is room for them; None while others must end before there are more."""
        while (job := self._next()) is not None or self._open:
            yield job

    def _next(self) -> Job | None:
        for number in self._leases.lost & self._open.keys():
            self._give_up(number)
        opened = next((each for each in self._open.values() if each.ready), None) or self._propose()
        if opened is None:
            return None
        seed = opened.ready.pop(0)
        return Job(key=(opened.trial.number, seed), config=self._build(opened.setting, seed))

    def _propose(self) -> _Open | None:
        sharing.take_over(self._study, self._leases)
        trial = sharing.ask(self._study, self._total, self._leases)
        if trial is None:
            return None
        first = JUDGED_AFTER if self._pruned else len(self._seeds)
        setting = tuple(item.suggest(trial) for item in self._ranges)
        self._open[trial.number] = _Open(trial, setting, self._seeds[:first], self._seeds[first:])
        self._write_history()
        return self._open[trial.number]

    def _record(self, event: Event) -> object:
        from optuna.exceptions import UpdateFinishedTrialError

        number = event.job.key[0]
        try:
            if number in self._open:
                self._look(self._open[number], event)
        except UpdateFinishedTrialError:
            self._leases.lost.add(number)
        if number in self._leases.lost:  # somebody else has the trial, and resumes its runs
            self._give_up(number)
        answer = self._progress(event)
        return False if number in self._unwanted else answer

    def _give_up(self, number: int) -> None:
        self._unwanted.add(number)
        self._open.pop(number, None)

    def _look(self, opened: _Open, event: Event) -> None:
        seed = event.job.key[1]
        if event.kind == "epoch" and event.row is not None:
            opened.epochs[seed] = event.row["epoch"] + 1
            if self._pruned and seed == self._seeds[0] and self._hopeless(opened, event):
                self._stop(opened)
        elif event.kind == "done" and event.summary is not None:
            opened.epochs.pop(seed, None)
            opened.ended[seed] = _excerpt(event.summary, seed)
            opened.trial.set_user_attr(
                sharing.ENDED, [opened.ended[each] for each in self._seeds if each in opened.ended]
            )
            if self._pruned and seed == self._seeds[0]:
                self._report(opened, event)
            self._judge(opened)
        elif event.kind == "failed":
            opened.trial.set_user_attr(sharing.ERROR, event.error)
            self._tell(opened)
        elif event.kind == "stopped":
            self._stop(opened)

    def _judge(self, opened: _Open) -> None:
        """End a trial with all its seeds, or decide about those that are held back."""
        if len(opened.ended) == len(self._seeds):
            self._tell(opened, Spread.of([opened.accuracies[seed] for seed in self._seeds]).mean)
        elif opened.held_back and len(opened.ended) == JUDGED_AFTER:
            if clearly_worse(opened.accuracies, self._best()):
                self._stop(opened)
            else:
                opened.ready, opened.held_back = opened.held_back, []
        else:
            self._write_history()

    def _best(self) -> dict[int, float]:
        from optuna.trial import TrialState

        finished = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return sharing.accuracies(self._study.best_trial) if finished else {}

    def _hopeless(self, opened: _Open, event: Event) -> bool:
        """Whether the pruner gives a setting up after an epoch of its first seed; what has ended is not stopped."""
        left = opened.epochs[self._seeds[0]] < event.job.config.schedule.epochs
        return self._report(opened, event) and left and opened.trial.should_prune()

    def _report(self, opened: _Open, event: Event) -> bool:
        """Tell the pruner the validation accuracies that it does not know, also those from before a run resumed."""
        rows: list[Mapping[str, Any]] = [event.row] if event.row is not None else []
        if not opened.reported:
            rows = [*RunFolder.of(event.job.config, self._runs).metrics(), *rows]
        known = {row["epoch"]: row.get("validation_accuracy") for row in rows}
        news = {epoch: value for epoch, value in known.items() if value is not None and epoch not in opened.reported}
        for epoch, value in news.items():
            opened.trial.report(value, epoch)
        opened.reported.update(news)
        return bool(news)

    def _stop(self, opened: _Open) -> None:
        """Give a setting up: runs of it that are being trained end at their next epoch."""
        self._unwanted.add(opened.trial.number)
        opened.trial.set_user_attr(sharing.STOPPED, {str(seed): epochs for seed, epochs in opened.epochs.items()})
        self._tell(opened, pruned=True)

    def _tell(self, opened: _Open, value: float | None = None, *, pruned: bool = False) -> None:
        self._close(opened)
        if not sharing.end(self._study, opened.trial, value, pruned=pruned):
            self._leases.lost.add(opened.trial.number)
        self._write_history()

    def _close(self, opened: _Open) -> None:
        self._leases.drop(opened.trial.number)
        self._open.pop(opened.trial.number, None)

    def _write_history(self) -> None:
        history.write(self._study, self._seeds, self._runs)


def _excerpt(summary: Mapping[str, Any], seed: int) -> dict[str, Any]:
    losses = {name: summary["last"].get(name) for name in ("train_loss", "perturbed_loss")}
    return {
        "seed": seed,
        "accuracy": validation_accuracy(summary),
        "epochs": summary["last"]["epoch"] + 1,
        "folder": summary["folder"],
        "last": losses,
        "diverged_at": summary.get("diverged_at"),
    }
