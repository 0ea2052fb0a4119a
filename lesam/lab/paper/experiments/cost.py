"""Seconds per epoch of SAM and LE-SAM, measured in turns so that a busy machine favours neither."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lesam.lab import recipes
from lesam.lab.config.optimizer import title
from lesam.lab.paper.accuracy import BACKBONES
from lesam.lab.paper.experiment import Cell, Planned, Report, Request, Variant, few_seeds
from lesam.lab.paper.racing import Racer
from lesam.lab.training.fabric import make_fabric
from lesam.lab.training.session import Session

METHODS = ("sam", "lesam")

# Table on training time of the paper: SAM and LE-SAM, one RTX 5090.
PUBLISHED: Mapping[str, tuple[float, float]] = {
    "ResNet-18": (9.06, 9.32),
    "WRN-28-10": (55.83, 56.26),
    "PyramidNet-110": (88.82, 89.72),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """How much is measured: turns of each method in steps; the first turn warms up and is not counted."""

    turns: int
    steps: int | None
    """Steps a turn; None takes whole epochs."""


EFFORTS: Mapping[str, Effort] = {
    "smoke": Effort(turns=4, steps=2),
    "small": Effort(turns=11, steps=12),
    "paper": Effort(turns=6, steps=None),
}


class Cost:
    """Trains SAM and LE-SAM side by side in one process, a turn each, and compares turn by turn."""

    name = "cost"
    title = "Training time per epoch of SAM and LE-SAM on CIFAR-100"

    recipes = tuple(f"cifar100-{backbone}" for backbone in BACKBONES.values())
    searches = False
    seeds = staticmethod(few_seeds)

    def plan(self, request: Request) -> list[Planned]:
        """It measures sessions of its own and leaves no runs."""
        if request.recipes and not set(self.recipes) & set(request.recipes):
            raise ValueError(f"cost measures {', '.join(self.recipes)}; got {', '.join(request.recipes)}")
        if request.methods and not set(METHODS) <= set(request.methods):
            raise ValueError(f"cost compares {' with '.join(METHODS)} and has no part; leave --methods out")
        return []

    def report(self, request: Request, cells: Sequence[Cell], kept: Sequence[Mapping[str, Any]] = ()) -> Report:
        """Measure every backbone that is asked for; others keep what was measured before."""
        measured = {
            label: self._measure(recipe, request)
            for label, recipe in zip(BACKBONES, self.recipes, strict=True)
            if not request.recipes or recipe in request.recipes
            if recipes.has_scale(recipe, request.scale)
        }
        known = {str(row["row"]): row for row in kept} | measured
        found = {label: known[label] for label in BACKBONES if label in known}
        sam, lesam = map(title, METHODS)
        head = ["", f"{sam} (s)", f"{lesam} (s)", f"{lesam} / {sam}", f"paper: {sam} (s)", f"{lesam} (s)", "ratio"]
        body = []
        for label, row in found.items():
            theirs = PUBLISHED[label]
            body.append(
                [
                    label,
                    *(f"{row['seconds_per_epoch'][method]:.2f}" for method in METHODS),
                    f"{row['ratio']:.3f} ({min(row['ratios']):.3f} to {max(row['ratios']):.3f})",
                    *(f"{seconds:.2f}" for seconds in theirs),
                    f"{theirs[1] / theirs[0]:.3f}",
                ]
            )
        return Report(
            tables={"Seconds per epoch, evaluation not counted": [head, *body]},
            rows=[{**row, "row": label, "paper": PUBLISHED[label], "runs": []} for label, row in found.items()],
            notes=[
                "SAM and LE-SAM train in turns in one process. Seconds are medians over turns, extrapolated to an "
                "epoch; the ratio is the median of the ratios within a turn, with their range. The first turn is not "
                "counted."
            ],
        )

    def _measure(self, recipe: str, request: Request) -> dict[str, Any]:
        effort = EFFORTS[request.scale]
        configs = {
            method: Variant(method=method).config(recipe, request.scale, request.seeds[0], request.changes)
            for method in METHODS
        }
        fabric = make_fabric(configs["sam"].system)
        if fabric.world_size > 1:
            raise ValueError(
                f"cost is measured in one process, not in {fabric.world_size}; start it alone, on one device"
            )
        racers = {method: Racer(Session(config, fabric)) for method, config in configs.items()}
        steps = effort.steps or racers["sam"].steps_per_epoch
        taken: dict[str, list[float]] = {method: [] for method in METHODS}
        for turn in range(effort.turns):
            # Who goes first changes from turn to turn.
            for method in METHODS if turn % 2 else reversed(METHODS):
                seconds = racers[method].run(steps)
                if turn:
                    taken[method].append(seconds)
            request.progress(f"{recipe}: turn {turn + 1} of {effort.turns}")
        ratios = [ours / theirs for theirs, ours in zip(taken["sam"], taken["lesam"], strict=True)]
        per_epoch = racers["sam"].steps_per_epoch / steps
        return {
            "recipe": recipe,
            "seconds_per_epoch": {method: statistics.median(seconds) * per_epoch for method, seconds in taken.items()},
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "seconds": taken,
            "steps_a_turn": steps,
        }


EXPERIMENT = Cost()
