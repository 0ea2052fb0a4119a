"""What of a run a contest keeps: its settings and its last row, small enough to be committed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

from lesam.lab import recipes
from lesam.lab.attacks.pgd import PRESETS
from lesam.lab.attacks.run import attack_run
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.files import write_atomically
from lesam.lab.paper.study.contest import Part
from lesam.lab.paper.study.dynamics import dynamics
from lesam.lab.runs.folder import RunFolder
from lesam.lab.runs.repetitions import has_diverged
from lesam.lab.runs.statistics import Spread
from lesam.lab.sweeps.tuning import Setting, Summary, validation_accuracy

KEPT = (
    "train_loss",
    "train_accuracy",
    "validation_accuracy",
    "validation_nll",
    "test_accuracy",
    "test_nll",
    "test_calibration_error",
    "perturbed_loss",
    "grad_norm",
    "rho",
    "passes",
)
"""Fields of the last row of the metrics, as far as a run has them; passes are those of the mean step of all epochs."""

ATTACKED_IMAGES = 1000
"""Of the test set, the same ones for all runs."""

CURVE = ("epoch", "train_loss", "rho", "eigenvalue", "trace", "lpf_excess")
"""Columns of the epochs in which flatness was measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One finished run of a contest."""

    entry: str
    recipe: str
    part: Part
    setting: Setting
    seed: int
    fingerprint: str
    commit: str
    seconds: float
    diverged: bool
    last: Mapping[str, float | None]
    method: str = ""
    configuration: Setting = ()
    """Every field that differs from the recipe's own: what is fixed for the entry, the base's setting and its own."""
    dynamics: Mapping[str, float] = field(default_factory=dict)
    """What the epochs of a repetition say about radius and rise, see :mod:`lesam.lab.paper.study.dynamics`."""
    attacked: Mapping[str, float] = field(default_factory=dict)
    """Accuracy under attacks on the test images, by name of the attack."""
    curve: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """Columns of the epochs in which flatness was measured."""

    @property
    def place(self) -> tuple[str, ...]:
        """What there is one run of: a seed of an entry's repetitions, a seed and setting of its search."""
        return (self.recipe, self.entry, self.part, str(self.seed), *(self.setting if self.part == "search" else ()))

    @property
    def summary(self) -> Summary:
        """What a search reads of a finished run."""
        return {"last": self.last, "diverged_at": 0 if self.diverged else None}

    @property
    def score(self) -> float:
        """Test accuracy of a repetition, validation accuracy of a trial, in percent; 0 for a run that diverged."""
        if self.diverged:
            return 0.0
        name = "validation_accuracy" if self.part == "search" else "test_accuracy"
        found = self.last.get(name)
        if found is None:
            raise ValueError(f"no {name}")
        return 100.0 * float(found)


def record(
    entry: str,
    part: Part,
    setting: Setting,
    run: RunFolder,
    summary: Summary,
    *,
    configuration: Setting = (),
    attacks: Sequence[str] = (),
) -> Record:
    """What is kept of a finished run; ``attacks`` are carried out where its folder does not have them yet."""
    config, rows = run.config(), run.metrics()
    # The price of a method that switches late is that of all epochs, not that of the last one.
    last = {**summary["last"], "passes": Spread.of([float(row["passes"]) for row in rows]).mean}
    if part == "search":
        validation_accuracy(summary)  # refuses a run without one, before its number is missed in a table
    return Record(
        entry=entry,
        recipe=config.recipe,
        part=part,
        setting=setting,
        seed=config.seed,
        fingerprint=config.fingerprint,
        commit=_commit(run),
        seconds=round(float(summary["seconds"]), 2),
        diverged=has_diverged(dict(summary)),
        last={name: _short(last[name]) for name in KEPT if name in last},
        method=config.method,
        configuration=configuration,
        dynamics={} if part == "search" else {name: _number(value) for name, value in dynamics(rows).items()},
        attacked={name: _number(_under_attack(run, name)) for name in attacks},
        curve=_curve(rows) if part == "track" else {},
    )


def _under_attack(run: RunFolder, name: str) -> float:
    samples = None if run.config().scale == "smoke" else ATTACKED_IMAGES  # there are fewer in all
    return attack_run(run, PRESETS[name], samples=samples).robustness.attacked


def _curve(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    measured = [row for row in rows if row.get("eigenvalue") is not None and row.get("lpf") is not None]
    found = {name: [_short(row.get(name)) for row in measured] for name in CURVE}
    # The loss at the weights on the images that flatness is measured on, not the mean over the epoch's steps.
    found["train_loss"] = [_number(row["lpf"] - row["lpf_excess"]) for row in measured]
    return found


def write(records: Iterable[Record], folder: Path) -> None:
    """One file for each recipe, one line for each run, in an order that does not depend on when runs ended."""
    folder.mkdir(parents=True, exist_ok=True)
    by_recipe: dict[str, list[Record]] = {}
    for one in records:
        by_recipe.setdefault(one.recipe, []).append(one)
    for recipe, found in by_recipe.items():
        ordered = sorted(found, key=lambda one: (one.entry, get_args(Part).index(one.part), one.setting, one.seed))
        lines = (json.dumps(asdict(one), separators=(",", ":")) + "\n" for one in ordered)
        write_atomically(folder / f"{recipe}.jsonl", "".join(lines))


def read(folder: Path) -> list[Record]:
    """All records of a folder; what is no record, or is there twice, is an error that names file and line."""
    found: dict[tuple[str, ...], Record] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            try:
                values = json.loads(line)
                one = Record(
                    **{**values, **{name: tuple(values.get(name, ())) for name in ("setting", "configuration")}}
                )
                _check(one)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ValueError(f"{file}, line {number} is no record of a run: {error}") from error
            if one.place in found:
                raise ValueError(
                    f"{file}, line {number} is a second run of {one.entry}, seed {one.seed} ({one.part}); the first "
                    f"has {' '.join(found[one.place].setting)}. Keep the one whose setting was chosen"
                )
            found[one.place] = one
    return list(found.values())


def known(folder: Path) -> dict[str, Record]:
    """The runs that the contests below a folder have records of, by fingerprint; of several the one that has most.

    Raises:
        ValueError: There are none.
    """
    found: dict[str, Record] = {}
    for contest in sorted({file.parent for file in folder.glob("*/*.jsonl")}):
        for one in read(contest):
            rival = found.get(one.fingerprint)
            more = rival is None or (len(one.attacked), len(one.curve)) > (len(rival.attacked), len(rival.curve))
            if one.part != "time" and more:
                found[one.fingerprint] = one
    if not found:
        raise ValueError(f"{folder} has no records of a contest; they are files such as study/RECIPE.jsonl")
    return found


def rebuilt(one: Record, scale: str) -> RunConfig:
    """The configuration of a record's run, from the recipe and what the record says differs from it."""
    built = recipes.build(one.recipe, method=one.method, scale=scale, seed=one.seed)
    return override(built, list(one.configuration))


def _check(one: Record) -> None:
    """Refuse a record whose numbers are none."""
    if one.part not in get_args(Part) or type(one.seed) is not int:
        raise ValueError(f"part {one.part!r} and seed {one.seed!r}")
    if not one.diverged and one.part != "time" and not 0.0 <= one.score <= 100.0:
        raise ValueError(f"an accuracy of {one.score} %")


def merged(known: Sequence[Record], new: Iterable[Record]) -> list[Record]:
    """One record for each place, the newer where there are two; after a range was moved, remove the old file first."""
    return list({one.place: one for one in (*known, *new)}.values())


def _commit(run: RunFolder) -> str:
    """The commit that the run was finished by; a plus sign says that the source was changed since."""
    return commit_words((run.environments() or [{}])[-1].get("commit"))


def commit_words(found: Mapping[str, Any] | None) -> str:
    """A commit as a record has it.

    >>> commit_words({"id": "0123456789abcdef", "modified": True}), commit_words(None)
    ('0123456789+', 'unknown')
    """
    found = found or {}
    return str(found.get("id", "unknown"))[:10] + ("+" if found.get("modified") else "")


def _short(value: float | None) -> float | None:
    return None if value is None else _number(value)


def _number(value: float) -> float:
    return float(f"{value:.6g}")
