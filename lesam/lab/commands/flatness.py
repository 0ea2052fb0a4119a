"""``lesam flatness``: the curvature of trained runs, as a table and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from lesam.lab.commands.options import FigureSize, RunPaths, found_runs, with_checkpoints
from lesam.lab.flatness.measures import FlatnessSettings

if TYPE_CHECKING:
    from lesam.lab.flatness.survey import Survey
    from lesam.lab.runs.repetitions import Group

DENSITY_DRAWS = 4
LAYER_EIGENVALUES = 1
CHEAP = "--samples 500 --eigenvalues 1 --trace-samples 10"


class Asked(FlatnessSettings):
    """Settings of the command line that remember which were given: the others follow from the scale of the runs."""

    given: dict[str, Any]

    def __init__(self, **given: Any) -> None:
        """Check all, keep those that were given."""
        super().__init__(**given)
        object.__setattr__(self, "given", given)


def flatness(
    runs: RunPaths,
    *,
    epochs: Annotated[
        list[int],
        Parameter(consume_multiple=True, negative="", help="Finished epochs to measure at; by default the last kept."),
    ] = [],  # noqa: B006 -- cyclopts reads the default, nobody changes it
    settings: Annotated[Asked | None, Parameter(name="*")] = None,
    density: Annotated[bool, Parameter(negative="", help="Also estimate the density of the whole spectrum.")] = False,
    by_layer: Annotated[
        bool, Parameter(negative="", help="Also measure each layer's own block of the Hessian, one after the other.")
    ] = False,
    device: Annotated[str, Parameter(help="cpu, cuda or auto.")] = "auto",
    storage: Annotated[str, Parameter(help="Where Lanczos keeps its basis: device, cpu or a folder.")] = "device",
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="Folder for the figures.")] = Path("figures"),
    size: FigureSize = "screen",
) -> None:
    """Measure Hessian eigenvalues, trace and low-pass filter of RUNS on un-augmented training images.

    The low-pass filter is measured at every kept checkpoint, the rest after --epochs. Results are kept in the run
    folders; asked again, the same question is answered from there. Where no run has the paper's scale, defaults are
    cheaper: 1000 samples, 5 eigenvalues, 20 trace samples, 10 LPF samples. An estimate of the time is printed before.
    """
    from lesam.lab import console
    from lesam.lab.flatness import table
    from lesam.lab.flatness.estimate import estimate, scale_of
    from lesam.lab.flatness.measures import CHEAPER, gradients, low_pass_gradients
    from lesam.lab.flatness.survey import survey
    from lesam.lab.runs import checkpoint as checkpoints
    from lesam.lab.runs.folder import RunFolder
    from lesam.lab.runs.repetitions import group

    wanted: list[int | None] = [*epochs] or [None]
    groups = group(with_checkpoints(found_runs(runs), wanted))
    every = [run for cell in groups for run in cell.runs]
    chosen = FlatnessSettings(
        **({} if scale_of(every) == "paper" else CHEAPER)
        | ({"density_draws": DENSITY_DRAWS} if density else {})
        | ({"layer_eigenvalues": LAYER_EIGENVALUES} if by_layer else {})
        | ({} if settings is None else settings.given)
    )

    def work(run: RunFolder) -> float:
        points = len(checkpoints.epoch_ends(run.checkpoints)) - len(wanted)
        return len(wanted) * gradients(chosen) + points * low_pass_gradients(chosen)

    print(estimate(every, work, chosen.samples, CHEAP), flush=True)
    if chosen.layer_eigenvalues:
        print("and for every layer about what the eigenvalues and the trace of the whole network take", flush=True)
    basis: Any = storage if storage in ("device", "cpu") else Path(storage)
    with console.measurements() as watch:

        def named(label: str, run: RunFolder) -> console.Watch:
            return lambda name: watch(f"{label}, seed {run.config().seed}, {name}")

        found = survey(
            {cell.title: cell.runs for cell in groups},
            lambda run: wanted,
            settings=chosen,
            progress=named,
            device=device,
            storage=basis,
        )
    console.show(table.rows(found), notes=table.notes(found))
    if chosen.layer_eigenvalues:
        console.show(table.layers(found), title="Each layer's own block of the Hessian")
    for path in _figures(found, groups, output, size):
        print(path)


def _figures(found: Survey, groups: Sequence[Group], folder: Path, size: FigureSize) -> list[Path]:
    """Draw what was measured; the files written."""
    from lesam.flatness import figures
    from lesam.lab.report import paper_size
    from lesam.lab.report.plots import caption
    from lesam.lab.report.style import looks_of
    from lesam.lab.runs.statistics import mean_and_spread

    looks = looks_of(groups)
    look: dict[str, Any] = {
        "colours": {name: each.colour for name, each in looks.items()},
        "dashes": {name: each.dash for name, each in looks.items()},
    }
    drawn = {}
    if any(found.of("eigenvalues").values()):
        drawn["spectrum"] = figures.spectrum(
            found.of("eigenvalues"), found.of("trace"), **look, summary=mean_and_spread
        )
    if any(found.of("density").values()):
        drawn["density"] = figures.density(found.of("density"), **look)
    if found.curves:
        drawn["low-pass"] = figures.low_pass(found.curves, **look, summary=mean_and_spread)
    for figure in drawn.values():
        paper_size.fit(caption(figure, groups), size)
    return [path for name, figure in drawn.items() for path in figures.save(figure, folder / name)]
