"""The history of a search in a file that needs no database to be read: ``searches/STUDY.json`` beside the runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lesam.lab.files import locked, write_atomically
from lesam.lab.runs.folder import parsed
from lesam.lab.sweeps.leases import host_of
from lesam.lab.sweeps.sharing import ENDED, ERROR, RESUMES, STOPPED, WITHDRAWN

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

FOLDER = "searches"
"""Inside the folder of runs."""
STATES = {"WAITING": "queued", "RUNNING": "running", "COMPLETE": "finished", "PRUNED": "stopped early"}


def history(study: optuna.Study, seeds: Sequence[int]) -> dict[str, Any]:
    """Everything that is known of the trials, as plain values."""
    trials = study.get_trials(deepcopy=False)
    return {
        "study": study.study_name,
        "seeds": list(seeds),
        "trials": [_trial(trial) for trial in sorted(trials, key=lambda trial: trial.number)],
    }


def write(study: optuna.Study, seeds: Sequence[int], runs: Path) -> None:
    """Write the history as it is now; of processes that do so at once, the last one writes the newest."""
    file = file_of(study.study_name, runs)
    with locked(file.with_name(f".{file.name}.lock")):
        write_atomically(file, json.dumps(history(study, seeds), indent=2) + "\n")


def file_of(name: str, runs: Path) -> Path:
    """The file of a study.

    >>> str(file_of("a/b", Path("runs")))
    'runs/searches/a%2Fb.json'
    """
    return runs / FOLDER / f"{quote(name, safe='')}.json"


def beside(runs: Iterable[Path]) -> list[Path]:
    """The histories that lie beside these run folders."""
    return sorted(file for folder in {run.parent for run in runs} for file in (folder / FOLDER).glob("*.json"))


def read(file: Path) -> dict[str, Any]:
    """The history of a file.

    Raises:
        ValueError: It is none.
    """
    found = parsed(file.read_text())
    if not isinstance(found, dict) or not {"study", "seeds", "trials"} <= found.keys():
        raise ValueError(f"{file} is no history of a search; delete it, and the search writes it again")
    return found


def _trial(trial: FrozenTrial) -> dict[str, Any]:
    known = trial.user_attrs
    ended = {
        str(run["seed"]): {"accuracy": run["accuracy"], "epochs": run["epochs"], "folder": run["folder"]}
        for run in known.get(ENDED, ())
        if "seed" in run  # trials of earlier versions do not say it
    }
    stopped = {seed: {"accuracy": None, "epochs": epochs} for seed, epochs in known.get(STOPPED, {}).items()}
    return {
        "number": trial.number,
        "setting": trial.params or trial.system_attrs.get("fixed_params", {}),
        "state": STATES.get(trial.state.name) or _why_not(known),
        "value": trial.value if trial.state.name == "COMPLETE" else None,
        "runs": {**stopped, **ended},
        "host": host_of(trial),
        "resumes": known.get(RESUMES),
        "started": _utc(trial.datetime_start),
        "ended": _utc(trial.datetime_complete),
        "error": known.get(ERROR, ""),
    }


def _why_not(known: dict[str, Any]) -> str:
    return "failed" if ERROR in known else "withdrawn" if WITHDRAWN in known else "given back"


def _utc(moment: datetime | None) -> str | None:
    """Optuna's times are those of the machine, without saying so."""
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds")
