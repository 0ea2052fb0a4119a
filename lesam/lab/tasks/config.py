"""What is trained for, as a typed record: one class per kind of training.

The optimizer, the schedule and the data are the same records for every kind; what a kind needs beyond them stands
here, so that a setting of one kind is an error in a run of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskConfig:
    """The kind of training; its settings are fields of the classes below."""

    kind: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassificationConfig(TaskConfig):
    """Cross-entropy on labelled images."""

    kind: Literal["classification"] = "classification"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a smoothing that is not a share."""
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(f"task.label_smoothing must lie in [0, 1), got {self.label_smoothing}")


TASKS: dict[str, type[TaskConfig]] = {"classification": ClassificationConfig}
"""Every kind of training a run may name."""
