"""The record of a measure is all that the rest of the lab knows of it."""

from __future__ import annotations

from dataclasses import fields

import pytest

from lesam.lab.config.run import TRACKED as TRACKABLE
from lesam.lab.flatness.measures import MEASURES, TRACKED, FlatnessSettings


def test_what_a_run_may_track_is_what_can_be_tracked() -> None:
    assert set(TRACKABLE) == set(TRACKED)


@pytest.mark.parametrize("name", MEASURES)
def test_records_are_complete(name: str) -> None:
    measure = MEASURES[name]
    assert measure.name == name
    assert measure.amount in {item.name for item in fields(FlatnessSettings)}
    assert measure.options(FlatnessSettings())["seed"] == 0
    if measure.tracking is not None:
        assert set(measure.tracking.drawn) <= set(measure.tracking.columns)
        assert set(measure.tracking.drawn.values()) <= set(measure.columns)
