"""The late switch: SAM and LE-SAM throughout training, or from the last fifth on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing

from lesam.lab.config.run import RunConfig
from lesam.lab.paper.experiment import Cell, Request, Variant
from lesam.lab.paper.grid import Grid, last_test
from lesam.lab.paper.stage import EVERY_EPOCH, STAGE, UNSTABILISED, groups_of
from lesam.lab.report import plots


def _switch(config: RunConfig) -> dict[str, Any]:
    """The switch in epoch 160 of 200 or at the same share of shorter runs; its checkpoint is kept for its relatives."""
    epochs = config.schedule.epochs
    at = epochs * 4 // 5
    return {"schedule.switch_at": at, "record.keep_epochs": (at, epochs), **EVERY_EPOCH}


def _draw_switch(request: Request, cells: Sequence[Cell]) -> Mapping[str, Drawing]:
    return {"late-switch": plots.switch(groups_of(cells))}


def _gaps(request: Request, cells: Sequence[Cell]) -> list[str]:
    means = {cell.row: float(np.mean([last_test(run) for run in cell.runs])) for cell in cells}
    return [
        f"{method} throughout minus {method} from the switch on: "
        f"{means[f'{method} throughout'] - means[f'SGD, then {method}']:+.2f} points (mean over seeds)."
        for method in ("SAM", "LE-SAM")
        if f"{method} throughout" in means and f"SGD, then {method}" in means
    ]


EXPERIMENT = Grid(
    name="late-switch",
    title="Throughout training, or from the last fifth on",
    rows={
        "SAM throughout": Variant(method="sam", changes=lambda config: EVERY_EPOCH),
        "SGD, then SAM": Variant(method="sam", changes=_switch),
        # The paper runs LE-SAM without its stabilisers here.
        "LE-SAM throughout": Variant(method="lesam", changes=lambda config: UNSTABILISED | EVERY_EPOCH),
        "SGD, then LE-SAM": Variant(method="lesam", changes=lambda config: UNSTABILISED | _switch(config)),
    },
    columns=STAGE,
    draw=_draw_switch,
    remarks=_gaps,
)
