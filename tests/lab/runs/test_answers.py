"""Answers in a run's folder: found by the same question only, and a damaged one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from lesam.flatness import TraceEstimate
from lesam.lab.runs.answers import Measured, Question, Recorded, answer, find
from lesam.lab.runs.folder import RunFolder

NUMBER = Recorded(to_record=lambda value: {"value": value}, from_record=lambda record: record["value"])


def question(run: Path, **key: int) -> Question:
    return Question(run=RunFolder(run), room="flatness", name="epoch-0003-trace", key=key)


def test_the_same_question_is_asked_once(tmp_path: Path) -> None:
    asked = []

    def ask(value: int) -> int:
        asked.append(value)
        return value

    assert find(question(tmp_path, samples=1), NUMBER) is None
    assert answer(question(tmp_path, samples=1), NUMBER, lambda: ask(5)) == 5
    assert answer(question(tmp_path, samples=1), NUMBER, lambda: ask(6)) == 5
    assert answer(question(tmp_path, samples=2), NUMBER, lambda: ask(7)) == 7
    assert asked == [5, 7]
    names = sorted(path.name for path in (tmp_path / "flatness").iterdir())
    assert len(names) == 2
    assert all(name.startswith("epoch-0003-trace-") and name.endswith(".json") for name in names)


def test_a_result_under_another_key_is_no_answer(tmp_path: Path) -> None:
    """As a file that was renamed: the digits are the question's, its key is not."""
    form = Measured(TraceEstimate)

    def measured() -> TraceEstimate:
        return TraceEstimate(estimate=1.5, stderr=0.1, settings={"loss": 0.5}, **_rest())

    one, other = question(tmp_path, samples=1), question(tmp_path, samples=2)
    assert answer(one, form, measured).settings["key.samples"] == 1
    assert find(one, form) is not None
    one.path.rename(other.path)
    assert find(other, form) is None


def _rest() -> dict[str, object]:
    import dataclasses

    known = {"estimate", "stderr", "settings"}
    return {item.name: 4 for item in dataclasses.fields(TraceEstimate) if item.name not in known}


@pytest.mark.parametrize("content", ["", "{", '{"other": 1}', "[]"])
def test_a_damaged_answer_is_named_and_nothing_else_is_asked(content: str, tmp_path: Path) -> None:
    damaged = question(tmp_path, samples=1)
    damaged.path.parent.mkdir()
    damaged.path.write_text(content)
    with pytest.raises(ValueError, match=rf"{damaged.path.name} cannot be read .*; delete it to ask again"):
        answer(damaged, NUMBER, lambda: 5)
