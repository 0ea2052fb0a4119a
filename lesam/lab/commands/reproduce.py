"""``lesam reproduce``: the tables and figures of the paper."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from lesam.lab.commands.options import Overrides, Scale, distinct
from lesam.lab.execution.where import HERE, Where, executor

if TYPE_CHECKING:
    from lesam.lab.paper.experiment import Request


def reproduce(
    names: Annotated[list[str], Parameter(negative="", help="Experiments of --list.")] = [],  # noqa: B006 -- only read
    *,
    list_: Annotated[
        bool, Parameter(name="--list", negative="", help="List the experiments and how far each is.")
    ] = False,
    plan: Annotated[
        bool, Parameter(negative="", help="Print the runs to train with time and disk, one command a line, and stop.")
    ] = False,
    scale: Scale = "small",
    seeds: Annotated[
        list[int],
        Parameter(consume_multiple=True, negative="", help="Seeds; by default the experiment's own number of them."),
    ] = [],  # noqa: B006
    methods: Annotated[
        list[str], Parameter(consume_multiple=True, negative="", help="Only these methods of the experiment.")
    ] = [],  # noqa: B006
    recipes: Annotated[
        list[str], Parameter(consume_multiple=True, negative="", help="Only these recipes of the experiment.")
    ] = [],  # noqa: B006
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="Folder for results, NAME/SCALE in it.")] = Path(
        "reproductions"
    ),
    runs: Annotated[
        Path | None, Parameter(help="Folder of run folders, shared by all experiments; by default OUTPUT/runs.")
    ] = None,
    where: Where = HERE,
    train_only: Annotated[bool, Parameter(negative="", help="Train the runs, and write no result.")] = False,
    report_only: Annotated[bool, Parameter(negative="", help="Write the result of what is finished.")] = False,
    task: Annotated[
        int | None, Parameter(help="Train one run of --plan by its number, as in --task $SLURM_ARRAY_TASK_ID.")
    ] = None,
    device_factor: Annotated[
        float, Parameter(help="With --plan: how many times as fast as this machine the device of a run is.")
    ] = 1.0,
    keep_for: Annotated[
        list[str],
        Parameter(
            consume_multiple=True,
            negative="",
            help="Let runs keep what these experiments read as well, such as flatness mechanism.",
        ),
    ] = [],  # noqa: B006
    tuned: Annotated[
        bool, Parameter(negative="", help="Search every row of a table alike before: five settings, two seeds.")
    ] = False,
    records: Annotated[
        Path | None,
        Parameter(help="For study and price: records such as those in results/; a run that has one is not trained."),
    ] = None,
    solver: Annotated[
        Literal["lanczos", "power"],
        Parameter(help="For eigenvalues of flatness: lanczos, or power iteration as the paper names, which is slow."),
    ] = "lanczos",
    set_: Overrides = [],  # noqa: B006
) -> None:
    """Train what an experiment of the paper needs, evaluate it, and write its table or figure beside the paper's."""
    from lesam.lab import paper
    from lesam.lab import recipes as all_recipes
    from lesam.lab.config.optimizer import methods as all_methods
    from lesam.lab.config.suggest import unknown
    from lesam.lab.execution.jobs import RunsFailedError
    from lesam.lab.paper import results, scales
    from lesam.lab.paper.experiment import Request
    from lesam.lab.paper.study.experiment import Contested
    from lesam.lab.paper.tuned import TUNED
    from lesam.lab.training.divergence import RunDivergedError

    for given, known, kind in (
        ((scale,), all_recipes.SCALES, "scale"),
        (methods, all_methods(), "method"),
        (recipes, all_recipes.names(), "recipe"),
        ([name.removesuffix(TUNED) for name in [*names, *keep_for]], paper.NAMES, "experiment"),
    ):
        for name in given:
            if name not in known:
                raise unknown(kind, name, known)
    if tuned:
        names = [name.removesuffix(TUNED) + TUNED for name in names]
    request = Request(
        scale=scale,
        seeds=tuple(distinct(seeds)) if seeds else (),
        runs=runs or output / "runs",
        methods=tuple(methods),
        recipes=tuple(recipes),
        changes=tuple(set_),
        keep_for=tuple(keep_for),
        solver=solver,
        records=records,
        progress=lambda text: print(text, flush=True),
    )
    if list_:
        _list(request, output)
        return
    if not names:
        raise ValueError(f"name an experiment: {', '.join(paper.NAMES)} (`lesam reproduce --list` shows them)")
    for name in names:  # before anything is trained
        scales.check(paper.find(name), request)
        if records is not None and not isinstance(paper.find(name), Contested):
            raise ValueError(f"--records {records}: {name} keeps none, only study and price do; leave it out")
    if plan:
        from lesam.lab.paper import planning

        for name in names:
            experiment = paper.find(name)
            asked = request.of(experiment)
            for line in planning.lines(experiment, asked, output, paper.plan(experiment, asked), device_factor):
                print(line, flush=True)
        return
    if train_only and report_only:
        raise ValueError("--train-only and --report-only leave nothing to do: give one of them")
    if task is not None and where.on != "local":
        raise ValueError(f"--task trains one run in this process and --on {where.on} sends runs away: give one of them")
    if task is not None:
        _train_one(names, request, task)
        return
    # Each of several processes has its share of the cores; one run at a time is trained by this process itself.
    several = 0 if where.jobs == 1 else where.jobs or 0
    alone = replace(where, jobs=None) if where.jobs == 1 else where
    trainer = executor(alone, request.runs, jobs=several, threads=max(1, (os.cpu_count() or 1) // max(1, several)))
    if train_only:
        for name in names:
            paper.train(name, request, output, trainer)
        return
    if report_only:
        from lesam.lab.execution.finished import OnlyFinished

        trainer = OnlyFinished(runs=request.runs)
    failures, lost = [], []
    for name in names:
        folder: Path | None = results.place(paper.find(name), request, output)
        try:
            folder = paper.reproduce(name, request, output, trainer)
        except RunsFailedError as error:
            failures.append(str(error))
            continue
        except RunDivergedError as error:
            lost.append(f"{name}: {error}")
        if report_only:
            _say_missing(name, request)
        if folder is None:
            continue
        if (folder / "table.md").exists():
            print((folder / "table.md").read_text())
        print(*sorted(path for path in folder.iterdir() if not path.name.startswith(".")), sep="\n")
    if failures:
        raise RunsFailedError("\n".join([*failures, *lost]))
    if lost:
        raise RunDivergedError("\n".join(lost))


def _say_missing(name: str, request: Request) -> None:
    """How many runs of an experiment are not finished, where nothing was trained."""
    from lesam.lab import paper
    from lesam.lab.paper import planning
    from lesam.lab.paper.layouts import finished

    experiment = paper.find(name)
    configs = planning.numbered(paper.plan(experiment, request.of(experiment)))
    missing = sum(not finished(config, request.runs) for config in configs)
    if missing:
        print(f"{name}: {missing} of {len(configs)} runs are not finished and left out", flush=True)


def _train_one(names: list[str], request: Request, number: int) -> None:
    """Train one of the runs that are planned, in this process."""
    from lesam.lab import paper
    from lesam.lab.paper import planning
    from lesam.lab.training.divergence import raise_if_diverged
    from lesam.lab.training.loop import train

    asked = [(experiment, request.of(experiment)) for experiment in map(paper.find, names)]
    configs = planning.numbered([run for experiment, of in asked for run in paper.plan(experiment, of)])
    if not 0 <= number < len(configs):
        raise ValueError(f"--task {number}: there are {len(configs)} runs, numbered from 0")
    raise_if_diverged([train(configs[number], runs=request.runs)], "`lesam train ... --again` trains anew")


def _list(request: Request, output: Path) -> None:
    """One line for each experiment: name, what it shows, how far it is."""
    from lesam.lab import console, paper
    from lesam.lab.paper import results

    lines = [
        (name, known.title, results.state(known, request.of(known), output))
        for name, known in ((name, paper.find(name)) for name in paper.NAMES)
    ]
    head = ("name", "shows", f"state at scale {request.scale}")
    console.show([head, *lines], plain="".join("\t".join(line) + "\n" for line in lines))
