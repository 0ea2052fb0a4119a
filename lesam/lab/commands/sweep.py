"""``lesam sweep``: many settings of one recipe, on several processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from lesam.lab.commands.options import Method, Overrides, Runs, Scale, Seeds, distinct
from lesam.lab.execution.where import HERE, Where, executor


def sweep(
    recipe: str,
    *,
    method: Method = "lesam",
    scale: Scale = "small",
    seeds: Seeds = [0],  # noqa: B006 -- cyclopts reads the default, nobody changes it
    set_: Overrides = [],  # noqa: B006
    grid: Annotated[list[str], Parameter(negative="", help="An axis, as in optimizer.sigma=0.2,0.35.")] = [],  # noqa: B006
    search: Annotated[
        list[str], Parameter(negative="", help="A range to search, as in optimizer.sigma=0.05:1:log.")
    ] = [],  # noqa: B006
    trials: Annotated[int, Parameter(help="Settings to try in a search.")] = 20,
    study: Annotated[
        str | None, Parameter(help="Name of the Optuna study; by default it follows from what is asked.")
    ] = None,
    storage: Annotated[
        str | None,
        Parameter(
            help="sqlite:///FILE (by default beside the runs); journal:///FILE, grpc:// or postgresql:// to share."
        ),
    ] = None,
    prune: Annotated[
        Literal["none", "median", "hyperband"], Parameter(help="Stop bad settings of a search early.")
    ] = "none",
    where: Where = HERE,
    runs: Runs = Path("runs"),
) -> None:
    """Train RECIPE over a grid, or search for the best validation accuracy; resumable, failures do not stop the rest.

    Parameters
    ----------
    recipe
        A recipe of `lesam list recipes`, or module:function for one of your own.
    """
    from lesam.lab import recipes
    from lesam.lab.config.run import RunConfig
    from lesam.lab.config.text import override
    from lesam.lab.execution.display import Display
    from lesam.lab.execution.jobs import raise_if_failed
    from lesam.lab.sweeps import grid as gridding
    from lesam.lab.sweeps import search as searching
    from lesam.lab.sweeps import sharing
    from lesam.lab.sweeps.ranges import Range

    def build(setting: Sequence[str], seed: int) -> RunConfig:
        config = recipes.build(recipe, method=method, scale=scale, seed=seed)
        return override(config, [*set_, *setting])

    if prune != "none" and not search:
        raise ValueError("--prune is for --search: a grid trains every setting")
    if bool(grid) == bool(search):
        raise ValueError("a sweep needs either --grid or --search")
    seeds = distinct(seeds)
    if grid:
        settings = gridding.parse_grid(grid)
        trainer = executor(where, runs, jobs=1)
        with Display(len(settings) * len(seeds)) as display:
            outcomes = gridding.grid(trainer, build, settings, seeds, display)
        ended = [outcome.summary for outcome in outcomes if outcome.summary is not None]
        different = {outcome.config.fingerprint: outcome.summary is not None for outcome in outcomes}
        print(f"{sum(different.values())} of {len(different)} runs finished; `lesam table {runs}` shows them")
        failed = [
            f"{' '.join(outcome.setting)} seed {outcome.seed}: {outcome.error}"
            for outcome in outcomes
            if outcome.summary is None
        ]
        raise_if_failed(failed, ended)
        return
    ranges = [Range.parse(text) for text in search]
    if trials < 1:
        raise ValueError(f"--trials must be at least 1, got {trials}")
    if where.jobs is None and where.on != "local":  # all at once, none could learn from another
        where = replace(where, jobs=max(1, trials // 4) * len(seeds))
    trainer = executor(where, runs, jobs=1)
    with Display(trials * len(seeds)) as display:
        found = searching.search(
            trainer,
            build,
            ranges,
            seeds,
            trials=trials,
            study_name=study,
            storage=storage or f"sqlite:///{(runs / 'study.sqlite3').resolve()}",
            runs=runs,
            prune=prune,
            progress=display,
        )
    print(searching.outcome(found, seeds))
    raise_if_failed([], sharing.summaries(found))
