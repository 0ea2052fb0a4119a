"""The trials of a study that several processes share: which of them count, and which are put back into the queue.

Storages differ in what they do at once. What must not happen twice therefore follows from the numbers of trials, which
every storage gives once: of two trials that are one too many, or that resume the same one, the later withdraws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lesam.lab.sweeps.leases import Leases, is_free

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

ENDED = "ended"
"""Attribute of a trial: the runs that came to their end in it."""
STOPPED = "stopped"
"""Attribute of a trial: epochs of the runs that were stopped, by their seeds."""
ERROR = "error"
"""Attribute of a trial: why it failed."""
RESUMES = "resumes"
"""Attribute of a trial: the number of the one whose setting it tries again."""
WITHDRAWN = "withdrawn"
"""Attribute of a trial: another process was first, and nothing of it was trained."""


def counted(study: optuna.Study, before: int | None = None) -> int:
    """Trials that count against the total, those below a number alone where there is one.

    Finished, stopped early, being worked on, or failed and not tried again.
    """
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False)
    resumed = _resumed(trials)
    states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
    return sum(
        (before is None or trial.number < before)
        and (trial.state in states or (ERROR in trial.user_attrs and trial.number not in resumed))
        for trial in trials
    )


def ask(study: optuna.Study, total: int, leases: Leases) -> optuna.Trial | None:
    """A trial to work on, with its lease; None where the study has as many as it should have."""
    while counted(study) < total:
        trial = study.ask()
        leases.hold(trial)
        resumes = trial.user_attrs.get(RESUMES)
        earlier = [each for each in study.get_trials(deepcopy=False) if each.number < trial.number]
        twice = resumes is not None and resumes in _resumed(earlier)
        if not twice and counted(study, before=trial.number) < total:
            return trial
        leases.drop(trial.number)
        trial.set_user_attr(WITHDRAWN, True)
        if end(study, trial) and resumes is not None and not twice:
            _queue(study, _numbered(study, resumes))
    return None


def end(study: optuna.Study, trial: optuna.Trial | int, value: float | None = None, *, pruned: bool = False) -> bool:
    """Tell how a trial ended: with a value, stopped early, or not; whether it was for us to tell."""
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    state = TrialState.COMPLETE if value is not None else TrialState.PRUNED if pruned else TrialState.FAIL
    number = trial if isinstance(trial, int) else trial.number
    try:
        study.tell(trial, value, state=state)
    except UpdateFinishedTrialError:
        return False
    except ValueError:
        if _numbered(study, number).state == TrialState.RUNNING:
            raise
        return False
    return True


def take_over(study: optuna.Study, ours: Leases) -> None:
    """End trials that nobody works on any more, and queue their settings; their runs resume from their folders."""
    from optuna.trial import TrialState

    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if is_free(trial, ours):
            give_back(study, trial.number)


def give_back(study: optuna.Study, trial: optuna.Trial | int) -> None:
    """End a trial whose runs are unfinished, and queue its setting; of several processes the one that ends it does."""
    if end(study, trial):
        _queue(study, _numbered(study, trial if isinstance(trial, int) else trial.number))


def queue_failures(study: optuna.Study) -> None:
    """Queue the settings of trials that failed when the search was last asked: the cause may be gone."""
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False)
    resumed = _resumed(trials)
    for trial in trials:
        if trial.state == TrialState.FAIL and WITHDRAWN not in trial.user_attrs and trial.number not in resumed:
            _queue(study, trial)


def summaries(study: optuna.Study) -> list[Mapping[str, Any]]:
    """What decides whether a run diverged, of every run that ended in the study."""
    return [ended for trial in study.get_trials(deepcopy=False) for ended in trial.user_attrs.get(ENDED, ())]


def accuracies(trial: FrozenTrial) -> dict[int, float]:
    """Validation accuracy of the runs of a trial that ended, by their seeds."""
    found = trial.user_attrs.get(ENDED, ())
    return {ended["seed"]: ended["accuracy"] for ended in found if "seed" in ended}  # earlier versions do not say it


def _numbered(study: optuna.Study, number: int) -> FrozenTrial:
    return next(trial for trial in study.get_trials(deepcopy=False) if trial.number == number)


def _queue(study: optuna.Study, trial: FrozenTrial) -> None:
    if trial.params:  # else its owner died before it had a setting
        study.enqueue_trial(trial.params, user_attrs={RESUMES: trial.number})


def _resumed(trials: Sequence[FrozenTrial]) -> set[int]:
    """Numbers of trials whose settings are tried again by these."""
    found = [trial.user_attrs for trial in trials if WITHDRAWN not in trial.user_attrs]
    return {attributes[RESUMES] for attributes in found if RESUMES in attributes}
