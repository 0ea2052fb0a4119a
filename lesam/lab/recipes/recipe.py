"""The shape of a recipe: how its runs are built, and what the paper reports for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lesam.lab.config import RunConfig

SCALE_TITLES: dict[str, str] = {
    "smoke": "seconds, made-up images: a look at the machinery",
    "small": "minutes on two CPU cores, real images; not every recipe has it",
    "paper": "the paper's own setting",
}
"""What each scale is, in a line."""

SCALES: tuple[str, ...] = tuple(SCALE_TITLES)
"""The sizes in which a recipe can be asked for."""

Build = Callable[[str, str, int], RunConfig]
"""From a method, a scale and a seed to the configuration of a run."""

Figure = tuple[float, float | None]
"""An accuracy of the paper in percent: its mean, and its spread where that is given."""

Settings = Mapping[str, Any]
"""Hyper-parameters of a method by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One cell of a table: a function from (method, scale, seed) to a run, by its name."""

    name: str
    title: str
    """What is trained, in a line."""
    build: Build
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """The paper's test accuracy by method, for the paper's setting."""
    ours: str = ""
    """Settings of the paper's scale that the paper does not give, in words; tables mark what rests on them."""
    guesses: Mapping[str, str] = field(default_factory=dict)
    """The same by method, for settings of single methods."""
    attacked: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The paper's accuracy under attack, by method and then by the attack's name in ``PRESETS``."""
    without: Mapping[str, str] = field(default_factory=dict)
    """Scales that it does not have, and why not."""

    @property
    def scales(self) -> tuple[str, ...]:
        """The scales that it has."""
        return tuple(scale for scale in SCALES if scale not in self.without)


CHECKPOINT_MINUTES = 10.0
"""Between two checkpoints at the paper's scale, whose epochs last from seconds to hours: what a crash costs at most."""

MARK = "†"
"""Marks what rests on settings that the paper does not give."""


def not_given(settings: str) -> str:
    """What the mark says.

    >>> not_given("rho")
    'the paper does not give rho; our choice.'
    """
    return f"the paper does not give {settings}; our choice."


def figure_text(figure: Figure | None) -> str:
    """A figure as the paper prints it; nothing where it has none.

    >>> figure_text((81.51, 0.08)), figure_text((82.01, None)), figure_text(None)
    ('81.51 ± 0.08', '82.01', '')
    """
    if figure is None:
        return ""
    mean, std = figure
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"
