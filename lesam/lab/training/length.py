"""How long to train, chosen on a held-out part of the training images: ERM++'s training amount.

The first pass trains on a part of the images and checks the rest at the end of each epoch; the number of steps with the
best accuracy there is how long the second pass, from scratch and on all images, is trained. The first pass is a run
of its own, in a folder inside the folder of the run it serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lesam.lab.config.run import RunConfig
from lesam.lab.config.task import ErmPlusPlusConfig
from lesam.lab.runs.folder import Row, RunFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The training amount that a first pass chose."""

    run: str
    """Folder of the first pass, inside that of the second."""
    steps: int
    validation_accuracy: float


def first_pass(config: RunConfig) -> RunConfig:
    """The run that chooses the length of another one.

    >>> from lesam.lab import recipes
    >>> config = recipes.build("pacs-photo", method="lesam", scale="paper")
    >>> first_pass(config).data.options["validation"], first_pass(config).task.two_passes
    (0.2, False)
    """
    if not isinstance(config.task, ErmPlusPlusConfig):
        raise ValueError(f"the length of a {config.task.kind} run is not chosen by a first pass")
    if config.data.options.get("validation"):
        raise ValueError(
            "data.options.validation would keep images from the second pass; the first one holds out "
            f"task.validation={config.task.validation} of them itself"
        )
    return replace(
        config,
        data=replace(config.data, options={**config.data.options, "validation": config.task.validation}),
        task=replace(config.task, two_passes=False),
        record=replace(config.record, evaluate_every=1, keep=1, keep_epochs=()),  # nobody reads its weights
    )


def choose(folder: RunFolder) -> Choice:
    """The best check of a finished first pass, the earliest of equals."""
    best = best_check(folder.metrics())
    return Choice(run=folder.path.name, steps=best["step"], validation_accuracy=best["validation_accuracy"])


def best_check(rows: Sequence[Row]) -> Row:
    """The row with the highest validation accuracy, the earliest of equals.

    >>> best_check([{"step": 300, "validation_accuracy": 0.8}, {"step": 600, "validation_accuracy": 0.8}])["step"]
    300
    """
    checks = [row for row in rows if row.get("validation_accuracy") is not None]
    if not checks:
        raise RuntimeError("the first pass has no row with a validation accuracy; delete its folder to train it again")
    return max(checks, key=lambda row: row["validation_accuracy"])
