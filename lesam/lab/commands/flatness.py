"""``lesam flatness``: the curvature of trained runs, as a table and figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from lesam.lab.commands.options import RunPaths

if TYPE_CHECKING:
    from lesam.flatness import LowPass
    from lesam.lab.flatness.measures import FlatnessResult
    from lesam.lab.flatness.subject import Watch
    from lesam.lab.runs.folder import RunFolder
    from lesam.lab.runs.repetitions import Group


def flatness(
    runs: RunPaths,
    *,
    epochs: Annotated[
        list[int],
        Parameter(consume_multiple=True, negative="", help="Finished epochs to measure at; by default the last kept."),
    ] = [],  # noqa: B006 -- cyclopts reads the default, nobody changes it
    samples: Annotated[int, Parameter(help="Training images to measure on.")] = 5000,
    batch_size: Annotated[int, Parameter(help="Images of one pass.")] = 500,
    eigenvalues: Annotated[int, Parameter(help="Largest eigenvalues to find; 0 for none.")] = 50,
    method: Annotated[Literal["lanczos", "power"], Parameter(help="power is what the paper names; slow.")] = "lanczos",
    trace_samples: Annotated[int, Parameter(help="Random products for the trace; 0 for no trace.")] = 100,
    density: Annotated[bool, Parameter(negative="", help="Also estimate the density of the whole spectrum.")] = False,
    lpf_sigma: Annotated[float, Parameter(help="Standard deviation of the noise on the weights.")] = 0.01,
    lpf_samples: Annotated[int, Parameter(help="Draws of that noise; 0 for no low-pass filter.")] = 20,
    mode: Annotated[Literal["eval", "train"], Parameter(help="train puts BatchNorm on batch statistics.")] = "eval",
    seed: Annotated[int, Parameter(help="Of starting vectors, signs and noise.")] = 0,
    device: Annotated[str, Parameter(help="cpu, cuda or auto.")] = "auto",
    storage: Annotated[str, Parameter(help="Where Lanczos keeps its basis: device, cpu or a folder.")] = "device",
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="Folder for the figures.")] = Path("figures"),
) -> None:
    """Measure Hessian eigenvalues, trace and low-pass filter of RUNS on un-augmented training images.

    The low-pass filter is measured at every kept checkpoint, the rest after --epochs. Results are kept in the run
    folders; asked again, the same question is answered from there.
    """
    from lesam.lab.flatness.measures import FlatnessSettings
    from lesam.lab.flatness.subject import kept_epoch
    from lesam.lab.gauges import gauges
    from lesam.lab.runs.folder import find_runs
    from lesam.lab.runs.repetitions import group

    settings = FlatnessSettings(
        samples=samples,
        batch_size=batch_size,
        eigenvalues=eigenvalues,
        method=method,
        trace_samples=trace_samples,
        density_draws=4 if density else 0,
        lpf_sigma=lpf_sigma,
        lpf_samples=lpf_samples,
        mode=mode,
        seed=seed,
    )
    groups = group(find_runs(runs))
    wanted: list[int | None] = [*epochs] or [None]
    for cell in groups:  # a mistake should not show after hours of measuring
        for run in cell.runs:
            for epoch in wanted:
                kept_epoch(run, epoch)
    options: dict[str, Any] = {"settings": settings, "device": None if device == "auto" else device}
    basis: Any = storage if storage in ("device", "cpu") else Path(storage)
    found: dict[str, dict[int, list[FlatnessResult]]] = {}
    curves: dict[str, dict[int, list[LowPass]]] = {}
    with gauges() as watch:
        for cell in groups:
            for run in cell.runs:
                _measure(cell, run, wanted, options, basis, watch, found, curves)
    _show(found)
    for path in _figures(groups, found, curves, output):
        print(path)


def _measure(
    cell: Group,
    run: RunFolder,
    wanted: list[int | None],
    options: dict[str, Any],
    storage: Any,
    watch: Watch,
    found: dict[str, dict[int, list[FlatnessResult]]],
    curves: dict[str, dict[int, list[LowPass]]],
) -> None:
    """Add the results of one run to those of its group."""
    from lesam.lab.flatness.measures import low_pass_curve, measure_run

    def named(name: str) -> Any:
        return watch(f"{cell.title}, seed {run.config().seed}, {name}")

    for epoch in wanted:
        result = measure_run(run, epoch=epoch, progress=named, storage=storage, **options)
        found.setdefault(cell.title, {}).setdefault(result.epoch, []).append(result)
    if options["settings"].lpf_samples:
        for epoch, filtered in low_pass_curve(run, progress=named, **options).items():
            curves.setdefault(cell.title, {}).setdefault(epoch, []).append(filtered)


def _show(found: dict[str, dict[int, list[FlatnessResult]]]) -> None:
    from lesam.lab.flatness import table as flatness_table

    if not sys.stdout.isatty():
        print(flatness_table.markdown(found))
        return
    from rich.console import Console
    from rich.table import Table

    head, *body = flatness_table.rows(found)
    table = Table(caption=flatness_table.notes(found))
    for name in head:
        table.add_column(name, overflow="fold")  # a number without its last digits would be another number
    for row in body:
        table.add_row(*row)
    Console().print(table)


def _figures(
    groups: list[Group],
    found: dict[str, dict[int, list[FlatnessResult]]],
    curves: dict[str, dict[int, list[LowPass]]],
    folder: Path,
) -> list[Path]:
    """Draw what was measured; the files written."""
    from lesam.flatness import figures
    from lesam.lab.report.plots import colours_of

    def of(name: str) -> dict[str, dict[int, list[Any]]]:
        """One measure, for the labels and epochs that have it."""
        measured = {
            label: {epoch: [getattr(run, name) for run in runs] for epoch, runs in epochs.items()}
            for label, epochs in found.items()
        }
        return {
            label: {epoch: values for epoch, values in epochs.items() if None not in values}
            for label, epochs in measured.items()
        }

    colours = colours_of(groups)
    written: list[Path] = []
    if any(of("eigenvalues").values()):
        figure = figures.spectrum(of("eigenvalues"), of("trace"), colours=colours)
        written += figures.save(figure, folder / "spectrum")
    if any(of("density").values()):
        written += figures.save(figures.density(of("density"), colours=colours), folder / "density")
    if curves:
        written += figures.save(figures.low_pass(curves, colours=colours), folder / "low-pass")
    return written
