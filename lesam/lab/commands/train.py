"""``lesam train``: one run for each seed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from lesam.lab.commands.options import Method, Overrides, Runs, Scale, Seeds, distinct


def train(
    recipe: str,
    *,
    method: Method = "lesam",
    scale: Scale = "small",
    seeds: Seeds = [0],  # noqa: B006 -- cyclopts reads the default, nobody changes it
    set_: Overrides = [],  # noqa: B006
    runs: Runs = Path("runs"),
    switch_at: Annotated[int | None, Parameter(help="Epoch from which the method replaces its base.")] = None,
    fresh_momentum: Annotated[bool, Parameter(negative="", help="Empty momentum at the switch.")] = False,
    devices: Annotated[
        str | None, Parameter(help="Processes on this machine: a number or auto; 1 if not given.")
    ] = None,
    nodes: Annotated[int | None, Parameter(help="Machines; 1 if not given.")] = None,
    accelerator: Annotated[str | None, Parameter(help="cpu, cuda, mps or auto; auto if not given.")] = None,
    precision: Annotated[
        Literal["32-true", "bf16-mixed", "16-mixed", "64-true"] | None, Parameter(help="32-true if not given.")
    ] = None,
    strategy: Annotated[Literal["auto", "ddp", "fsdp"] | None, Parameter(help="auto if not given.")] = None,
    compile: Annotated[bool | None, Parameter(negative="", help="Compile the model with torch.compile.")] = None,
    track: Annotated[str | None, Parameter(help="Flatness to record on the way, such as lpf,trace,eigenvalue.")] = None,
    track_every: Annotated[int | None, Parameter(help="Epochs between two such measurements.")] = None,
    again: Annotated[
        bool, Parameter(negative="", help="Train finished runs anew; old results are kept aside.")
    ] = False,
    dry_run: Annotated[bool, Parameter(negative="", help="Print the configuration and stop.")] = False,
) -> None:
    """Train RECIPE; a run that was stopped resumes, a finished one is left alone.

    Parameters
    ----------
    recipe
        A recipe of `lesam list recipes`, or module:function for one of your own.
    """
    from lesam.lab import recipes
    from lesam.lab.config.checks import check
    from lesam.lab.config.optimizer import PLAIN
    from lesam.lab.config.text import change, override, to_json

    if fresh_momentum and switch_at is None:
        raise ValueError("--fresh-momentum is about the switch: give --switch-at EPOCH as well")
    if switch_at is not None and method in PLAIN:
        raise ValueError(f"--switch-at is where a method replaces its base optimizer, and {method} is one itself")
    if track_every is not None and track is None:
        raise ValueError("--track-every needs --track, as in --track lpf,trace")
    system = {
        "devices": devices,
        "nodes": nodes,
        "accelerator": accelerator,
        "precision": precision,
        "strategy": strategy,
        "compile": compile,
    }
    # What is not given stays as the recipe has it.
    changes: dict[str, Any] = {f"system.{name}": value for name, value in system.items() if value is not None}
    if track is not None:
        changes["record.track"] = tuple(track.split(","))
    if track_every is not None:
        changes["record.track_every"] = track_every
    if switch_at is not None:
        changes |= {"schedule.switch_at": switch_at, "schedule.carry_momentum": not fresh_momentum}
    built = [recipes.build(recipe, method=method, scale=scale, seed=seed) for seed in distinct(seeds)]
    configs = [override(change(config, changes), set_) for config in built]
    for config in configs:
        check(config)
    if dry_run:
        print(*(to_json(config) for config in configs), sep="", end="")
        return
    # Only now: what needs seconds to import should not delay an error in the arguments.
    from lesam.lab.training.divergence import raise_if_diverged
    from lesam.lab.training.fabric import make_fabric
    from lesam.lab.training.loop import train as train_run

    fabric = make_fabric(configs[0].system)
    summaries = [train_run(config, runs=runs, fabric=fabric, again=again) for config in configs]
    raise_if_diverged(summaries, "--again trains anew")
