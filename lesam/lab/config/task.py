"""What is trained for, as a typed record: one class per kind of training.

The optimizer, the schedule and the data are the same records for every kind; what a kind needs beyond them stands
here, so that a setting of one kind is an error in a run of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lesam.lab.config.suggest import unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskConfig:
    """The kind of training; its settings are fields of the classes below."""

    kind: str

    @property
    def head_start(self) -> int:
        """Steps that the task takes with an optimizer of its own before the run's takes over."""
        return 0

    @property
    def epoch_steps(self) -> int | None:
        """Steps of an epoch of images drawn with replacement; None goes through all images once an epoch."""
        return None

    @property
    def two_passes(self) -> bool:
        """Whether a first pass on a part of the images decides how long to train on all of them."""
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassificationConfig(TaskConfig):
    """Cross-entropy on labelled images."""

    kind: Literal["classification"] = "classification"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a smoothing that is not a share."""
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(f"task.label_smoothing must lie in [0, 1), got {self.label_smoothing}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ErmPlusPlusConfig(TaskConfig):
    """ERM++: a classifier trained first, an average of the weights, and a training amount chosen in a first pass."""

    kind: Literal["ermpp"] = "ermpp"
    two_passes: bool = True
    """Choose the number of steps on a held-out part of the training images, then train on all of them as long."""
    validation: float = 0.2
    """Share of the training images that the first pass holds out."""
    check_every: int = 300
    """Steps between two checks of the held-out part; images are drawn with replacement."""
    warm_start: int = 501
    """Number of first steps that train the classifier alone: steps 0 to 500, as ERM++'s ``step <= 500``; 0 for none."""
    warm_start_lr: float = 5e-5
    """Learning rate of the Adam that trains the classifier."""
    leak_gradients: bool = False
    """Let gradients of the other weights add up in the warm start and enter the first step after it, as in ERM++'s
    released code; only to compare with it."""
    average_from: int = 600
    """The average is over the weights after ``average_from - 1`` steps and after every later one."""
    average_batch_norm: Literal["forward", "average"] = "forward"
    """Statistics of the averaged network: each batch goes through it in training mode, or they are averaged too."""

    def __post_init__(self) -> None:
        """Refuse lengths and shares without a meaning."""
        if not 0.0 < self.validation < 1.0:
            raise ValueError(f"task.validation must lie in (0, 1), got {self.validation}")
        if self.check_every < 1 or self.average_from < 1:
            raise ValueError(
                f"task.check_every and task.average_from must be at least 1, got {self.check_every} "
                f"and {self.average_from}"
            )
        if self.warm_start < 0:
            raise ValueError(f"task.warm_start must be at least 0, got {self.warm_start}")

    @property
    def head_start(self) -> int:
        """The warm start has an optimizer of its own."""
        return self.warm_start

    @property
    def epoch_steps(self) -> int | None:
        """An epoch ends with a check."""
        return self.check_every


@dataclass(frozen=True, kw_only=True, slots=True)
class GLMCConfig(TaskConfig):
    """Consistency of global and local mixtures with cumulative re-balancing, for long-tailed data."""

    kind: Literal["glmc"] = "glmc"
    resampling_power: float = 0.0
    """``r``: the second loader draws an image of class ``y`` in proportion to ``n_y^-r``."""
    weight_power: float = 1.2
    """``k``: class ``c`` weighs ``n_c^-k`` in the re-balanced loss."""
    gamma: float = 4.0
    """Weight of the similarity of the two mixtures."""
    ascent: Literal["full", "no_sim"] = "full"
    """What a sharpness-aware method climbs: the whole loss, or the loss without the similarity."""

    def __post_init__(self) -> None:
        """Refuse negative powers and weights."""
        for name in ("resampling_power", "weight_power", "gamma"):
            if getattr(self, name) < 0:
                raise ValueError(f"task.{name} must not be negative, got {getattr(self, name)}")


TASKS: dict[str, type[TaskConfig]] = {
    "classification": ClassificationConfig,
    "ermpp": ErmPlusPlusConfig,
    "glmc": GLMCConfig,
}
"""Every kind of training a run may name."""


def task_class(kind: str) -> type[TaskConfig]:
    """The record of a kind of training."""
    if kind not in TASKS:
        raise unknown("kind", kind, TASKS)
    return TASKS[kind]
