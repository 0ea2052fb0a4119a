"""Answers to questions about a run, kept in its folder and found again by the same question.

``RUN/flatness/epoch-0200-trace-1a2b3c4d5e.json`` and ``RUN/attacks/1a2b3c4d5e.json`` are such answers. The ten digits
are a hash of everything that decides the answer (weights, images, options), so another question never finds it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from lesam.flatness import Measurement
from lesam.lab.config.run import digest
from lesam.lab.files import write_atomically
from lesam.lab.runs.folder import RunFolder

Kept = TypeVar("Kept")
Result = TypeVar("Result", bound=Measurement)


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question about a run: what decides the answer, and where it is kept."""

    run: RunFolder
    room: str
    """Folder in the run's folder."""
    key: Mapping[str, Any]
    """Everything that decides the answer, as plain values."""
    name: str = ""
    """What the file's name begins with, for people."""
    suffix: str = ".json"

    @property
    def path(self) -> Path:
        """The file of the answer."""
        return self.run.path / self.room / f"{self.name}{'-' if self.name else ''}{digest(self.key)}{self.suffix}"


class Form(Protocol[Kept]):
    """How an answer is written to a file."""

    def read(self, question: Question) -> Kept | None:
        """The answer in the question's file, None where it answers another question or a part of this one."""

    def write(self, question: Question, answer: Kept) -> Kept:
        """Write the answer, and return it as :meth:`read` would."""


def find(question: Question, form: Form[Kept]) -> Kept | None:
    """The kept answer to a question, None where there is none."""
    if not question.path.exists():
        return None
    try:
        return form.read(question)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{question.path} cannot be read ({error}); delete it to ask again") from None


def answer(question: Question, form: Form[Kept], ask: Callable[[], Kept]) -> Kept:
    """The kept answer to a question, or a new one, which is kept."""
    found = find(question, form)
    if found is not None:
        return found
    fresh = ask()
    question.path.parent.mkdir(exist_ok=True)
    return form.write(question, fresh)


@dataclass(frozen=True, slots=True)
class Measured(Generic[Result]):
    """A result of :mod:`lesam.flatness`, in its own format with the key among its settings."""

    kind: type[Result]

    def read(self, question: Question) -> Result | None:
        """The stored result if it was measured under the same key."""
        stored = self.kind.load(question.path)
        return stored if _marked(question).items() <= stored.settings.items() else None

    def write(self, question: Question, answer: Result) -> Result:
        """Save the result with the key."""
        marked = replace(answer, settings=dict(answer.settings) | _marked(question))
        marked.save(question.path)
        return marked


@dataclass(frozen=True, slots=True)
class Recorded(Generic[Kept]):
    """Anything else as JSON, by two functions."""

    to_record: Callable[[Kept], Mapping[str, Any]]
    from_record: Callable[[Mapping[str, Any]], Kept]

    def read(self, question: Question) -> Kept | None:
        """The recorded answer."""
        return self.from_record(json.loads(question.path.read_text()))

    def write(self, question: Question, answer: Kept) -> Kept:
        """Write the record."""
        write_atomically(question.path, json.dumps(self.to_record(answer), indent=2) + "\n")
        return answer


def _marked(question: Question) -> dict[str, Any]:
    return {f"key.{name}": value for name, value in question.key.items()}
