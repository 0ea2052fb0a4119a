"""The late switch: SAM and LE-SAM throughout training, or from the last fifth on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure as Drawing

from lesam.lab.config.optimizer import title
from lesam.lab.config.run import RunConfig
from lesam.lab.paper.experiment import Cell, Request, Variant
from lesam.lab.paper.grid import Grid, last_test
from lesam.lab.paper.stage import EVERY_EPOCH, STAGE, UNSTABILISED, groups_of
from lesam.lab.report import plots
from lesam.lab.runs.statistics import paired


def _switch(config: RunConfig) -> dict[str, Any]:
    """The switch in epoch 160 of 200 or at the same share of shorter runs; its checkpoint is kept for its relatives."""
    epochs = config.schedule.epochs
    at = epochs * 4 // 5
    return {"schedule.switch_at": at, "record.keep_epochs": (at, epochs), **EVERY_EPOCH}


def _throughout(name: str) -> str:
    return f"{name} throughout"


def _late(name: str) -> str:
    return f"{title('sgd')}, then {name}"


def _draw_switch(request: Request, cells: Sequence[Cell]) -> Mapping[str, Drawing]:
    return {"late-switch": plots.switch(groups_of(cells))}


def _gaps(request: Request, cells: Sequence[Cell]) -> list[str]:
    found = {
        cell.row: {config.seed: last_test(run) or 0.0 for config, run in zip(cell.configs, cell.runs, strict=True)}
        for cell in cells
    }
    said = []
    for method in map(title, ("sam", "lesam")):
        gap = paired(found.get(_throughout(method), {}), found.get(_late(method), {}))
        if gap is not None:
            said.append(
                f"{method} throughout minus {method} from the switch on: {gap.signed(1.0)} points, seed by seed."
            )
    return said


EXPERIMENT = Grid(
    name="late-switch",
    title="Throughout training, or from the last fifth on",
    rows={
        _throughout(title("sam")): Variant(method="sam", changes=lambda config: EVERY_EPOCH),
        _late(title("sam")): Variant(method="sam", changes=_switch),
        # The paper runs LE-SAM without its stabilisers here.
        _throughout(title("lesam")): Variant(method="lesam", changes=lambda config: UNSTABILISED | EVERY_EPOCH),
        _late(title("lesam")): Variant(method="lesam", changes=lambda config: UNSTABILISED | _switch(config)),
    },
    columns=STAGE,
    draw=_draw_switch,
    remarks=_gaps,
)
