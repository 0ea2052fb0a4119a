"""Loss landscapes of trained runs on common axes, cached in the run's folder and resumable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from lesam.flatness import Landscape, landscape
from lesam.lab.console import Watch
from lesam.lab.flatness.measures import accuracy, loss_function
from lesam.lab.flatness.subject import Subject
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs.answers import Measured, answer
from lesam.lab.runs.folder import RunFolder

SAVE_EVERY = 1.0
"""Seconds of work that a killed process may lose."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LandscapeSettings:
    """The grid, its directions, and the images the loss is taken on."""

    dimensions: Literal[1, 2] = 2
    points: int = 51
    span: float = 1.0
    """The grid reaches from ``-span`` to ``span`` in units of the weights' own filters."""
    seed: int = 123
    """Of the directions: equal seeds cut every network of one architecture along the same draws."""
    batch_norm: Literal["trained", "reestimated"] = "trained"
    """Running statistics as trained, or estimated anew in each cell, which doubles the time."""
    samples: int = 10000
    batch_size: int = 1000
    subset_seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be meant."""
        if self.span <= 0:
            raise ValueError(f"span must be positive, got {self.span}")
        for name in ("samples", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def measure_landscape(
    run: RunFolder,
    *,
    epoch: int | None = None,
    settings: LandscapeSettings | None = None,
    processes: int = 1,
    progress: Watch | None = None,
    device: torch.device | str | None = None,
) -> Landscape:
    """The loss and the accuracy around a kept checkpoint; cells that were evaluated before are not evaluated again.

    ``RUN/flatness/epoch-0200-landscape-1a2b3c4d5e.npz`` always holds what is known, also after the process was killed.

    Args:
        run: The run's folder.
        epoch: Number of finished epochs; None takes the last kept checkpoint.
        settings: The grid; the default one for None.
        processes: Processes that evaluate cells; scripts then need the usual ``if __name__ == "__main__":``.
        progress: Called when the evaluation begins, unless nothing is left to evaluate.
        device: Where to evaluate; None takes CUDA where there is one.

    Raises:
        ValueError: There is no such checkpoint (the sentence lists those that exist).
    """
    chosen = settings or LandscapeSettings()
    after = checkpoints.find(run.checkpoints, epoch).epoch
    subject = Subject(
        run,
        samples=chosen.samples,
        batch_size=chosen.batch_size,
        subset_seed=chosen.subset_seed,
        device=device,
    )
    options: dict[str, Any] = {
        "dimensions": chosen.dimensions,
        "points": chosen.points,
        "seed": chosen.seed,
        "batch_norm": chosen.batch_norm,
    }
    decides = {f"landscape.{name}": value for name, value in {**options, "span": chosen.span}.items()}
    question = subject.question(after, "landscape", decides, suffix=".npz")

    def evaluate() -> Landscape:
        # Cells go to the question's own file as they are evaluated; the key is written to it when none is missing.
        return landscape(
            subject.model(after),
            loss_function,
            subject.images,
            **options,
            span=(-chosen.span, chosen.span),
            metric=accuracy,
            path=question.path,
            save_every=SAVE_EVERY,
            processes=processes,
            progress=None if progress is None else progress(f"epoch {after}, landscape"),
        )

    return answer(question, Measured(Landscape), evaluate)
