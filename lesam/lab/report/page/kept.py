"""Measurements and attacks that lie in the run folders; nothing is measured here.

The same measure may have been taken several times with other settings. Numbers are compared only where the settings
are equal: of each measure the page shows the settings that most runs have, and says how many answers it left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lesam.flatness import Landscape, Measurement
from lesam.lab.flatness.measures import MEASURES
from lesam.lab.report.page.entries import Entry, Member, number
from lesam.lab.runs.statistics import Spread

LANDSCAPE = "landscape"
NAME = re.compile(r"epoch-(?P<epoch>\d+)-(?P<measure>[a-z_]+)-[0-9a-f]{10}\.(json|npz)")
OF_THE_RUN = ("key.run", "key.weights")

Settings = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One answer about one run."""

    member: Member
    epoch: int
    settings: Settings
    """What was asked, without the run and its weights."""
    result: Any

    @property
    def ended(self) -> bool:
        """Whether the run has reached its end: only then it counts in a mean."""
        return self.member.status != "unfinished"

    @property
    def final(self) -> bool:
        """Whether the answer is about the newest weights of the run."""
        return self.epoch == self.member.epochs


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Everything that was measured of the runs of a page, by measure and by the name of the group."""

    flatness: Mapping[str, Mapping[str, Sequence[Answer]]]
    attacks: Mapping[str, Sequence[Answer]]
    corruptions: Mapping[str, Sequence[Answer]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def of(self, measure: str, entry: Entry) -> Sequence[Answer]:
        """The answers of a group."""
        return self.flatness.get(measure, {}).get(entry.name, ())

    def final(self, measure: str, entry: Entry) -> list[Answer]:
        """Those about the end of the group's runs, of runs that have ended."""
        return [answer for answer in self.of(measure, entry) if answer.ended and answer.final]


def collect(entries: Sequence[Entry]) -> Kept:
    """Read what lies in the folders; a file that cannot be read is named and left out."""
    notes: list[str] = []
    found: dict[str, dict[str, list[Answer]]] = {}
    attacks: dict[str, list[Answer]] = {}
    corruptions: dict[str, list[Answer]] = {}
    for entry in entries:
        for member in entry.members:
            for measure, answer in _flatness(member, notes):
                found.setdefault(measure, {}).setdefault(entry.name, []).append(answer)
            attacks.setdefault(entry.name, []).extend(_attacks(member, notes))
            corruptions.setdefault(entry.name, []).extend(_corruptions(member, notes))
    chosen = {measure: _alike(measure, answers, notes) for measure, answers in found.items()}
    attacks = _at_the_end("attacks", attacks, notes)
    corruptions = _at_the_end("corruptions", corruptions, notes)
    open_still = {
        answer.member.run.path.name
        for groups in chosen.values()
        for answers in groups.values()
        for answer in answers
        if not answer.ended
    }
    if open_still:
        notes.append(f"flatness of unfinished runs is not counted: {', '.join(sorted(open_still))}")
    if any(corruptions.values()):
        corruptions = _alike("corruptions", corruptions, notes)
    return Kept(flatness=chosen, attacks=attacks, corruptions=corruptions, notes=notes)


def answers_of(member: Member) -> list[tuple[str, Answer]]:
    """Every answer that can be read in the folder of one run, by the name of its measure."""
    notes: list[str] = []
    attacks = [("attack", answer) for answer in _attacks(member, notes)]
    return [*_flatness(member, notes), *attacks, *(("corruptions", found) for found in _corruptions(member, notes))]


def _at_the_end(what: str, found: Mapping[str, list[Answer]], notes: list[str]) -> dict[str, list[Answer]]:
    """The answers about the last weights of runs that have ended: other epochs are other networks."""
    every = [answer for answers in found.values() for answer in answers]
    open_still = sorted({answer.member.run.path.name for answer in every if not answer.ended})
    earlier = sorted({answer.member.run.path.name for answer in every if answer.ended and not answer.final})
    if open_still:
        notes.append(f"{what} of unfinished runs are not shown: {', '.join(open_still)}")
    if earlier:
        notes.append(f"{what} at checkpoints before the end of a run are not shown: {', '.join(earlier)}")
    return {name: [answer for answer in answers if answer.ended and answer.final] for name, answers in found.items()}


def _alike(measure: str, found: Mapping[str, list[Answer]], notes: list[str]) -> dict[str, list[Answer]]:
    """The answers to the question that most runs were asked."""
    runs: dict[Settings, set[Path]] = {}
    for answers in found.values():
        for answer in answers:
            runs.setdefault(answer.settings, set()).add(answer.member.run.path)
    most = max(runs, key=lambda settings: len(runs[settings]))
    kept = {name: [answer for answer in answers if answer.settings == most] for name, answers in found.items()}
    others = sum(len(answers) for answers in found.values()) - sum(len(answers) for answers in kept.values())
    if others:
        notes.append(f"{others} measurements of {measure} have other settings than most runs and are not shown")
    return kept


def _flatness(member: Member, notes: list[str]) -> list[tuple[str, Answer]]:
    found = []
    for path in _files(member.run.path / "flatness"):
        name = NAME.fullmatch(path.name)
        if name is None:
            continue
        measure = name["measure"]
        kind: type[Measurement] | None = Landscape if measure == LANDSCAPE else None
        if measure in MEASURES:
            kind = MEASURES[measure].result
        if kind is None:
            continue
        try:
            result = kind.load(path)
            asked = {key: value for key, value in result.settings.items() if key.startswith("key.")}
            if not asked:
                notes.append(f"{path} is not finished; the command that began it resumes it")
                continue
            columns = MEASURES[measure].columns.values() if measure in MEASURES else ()
            if any(number(column.value(result)) is None for column in columns):
                notes.append(f"{path} holds a number that is not finite and is left out")
                continue
            settings = _comparable({key: value for key, value in asked.items() if key not in OF_THE_RUN})
            found.append((measure, Answer(member=member, epoch=int(name["epoch"]), settings=settings, result=result)))
        except Exception as error:  # a file of any content must not take the page away
            notes.append(f"{path} cannot be read ({type(error).__name__}: {error}); delete it to measure again")
    return found


def _attacks(member: Member, notes: list[str]) -> list[Answer]:
    def read(record: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        asked = dict(record["settings"])
        shares = {name: number(record["result"][name]) for name in ("clean", "attacked")}
        return {**asked.pop("attack"), **asked}, shares

    return _recorded(member, "attacks", "attack", read, notes)


def _corruptions(member: Member, notes: list[str]) -> list[Answer]:
    def read(record: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        found = record["result"]["corrupted"]
        means = {name: number(Spread.of([float(value) for value in values]).mean) for name, values in found.items()}
        # Which corruptions there are in which amounts, as one text: settings are compared.
        asked = {**record["settings"], "corruptions": json.dumps(record["settings"]["corruptions"])}
        return asked, {"clean": number(record["result"]["clean"]), **means}

    return _recorded(member, "corruptions", "corrupt", read, notes)


def _recorded(
    member: Member,
    room: str,
    verb: str,
    read: Callable[[Mapping[str, Any]], tuple[dict[str, Any], dict[str, float | None]]],
    notes: list[str],
) -> list[Answer]:
    """The answers in a room of a run's folder, each as its settings and its numbers."""
    found = []
    for path in _files(member.run.path / room):
        try:
            asked, result = read(json.loads(path.read_text()))
            epoch = int(asked.pop("checkpoint")["epoch"])
            if None not in result.values():
                found.append(Answer(member=member, epoch=epoch, settings=_comparable(asked), result=result))
        except Exception as error:  # a file of any content must not take the page away
            notes.append(f"{path} cannot be read ({type(error).__name__}: {error}); delete it to {verb} again")
    return found


def _comparable(asked: Mapping[str, Any]) -> Settings:
    """What was asked, as a key to sort answers by.

    Raises:
        TypeError: A setting is a list or a record, which no command writes.
    """
    settings = tuple(sorted(asked.items()))
    hash(settings)
    return settings


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:
        return []
