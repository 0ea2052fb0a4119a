"""Flatness results as a table: one line for each group of runs and epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from lesam.lab.console import table
from lesam.lab.flatness.measures import FlatnessResult
from lesam.lab.runs.statistics import Spread

Found = Mapping[str, Mapping[int, Sequence[FlatnessResult]]]
"""Label to number of finished epochs to the results of the repetitions."""

HEAD = ("method", "epoch", "n", "loss", "eigenvalue", "trace", "LPF", "LPF - loss")
NOTE = (
    "The eigenvalue is the largest; LPF is the loss under weight noise. With n > 1: mean ± sample standard deviation "
    "(n - 1) over seeds; with n = 1 the standard error of the estimate."
)


def rows(found: Found) -> list[tuple[str, ...]]:
    """The head of the table and its lines."""
    lines = [
        (label, str(epoch), str(len(runs)), *_cells(runs))
        for label, epochs in found.items()
        for epoch, runs in sorted(epochs.items())
    ]
    return [HEAD, *lines]


def notes(found: Found) -> str:
    """What a reader has to know before using the numbers."""
    spectra = [run.eigenvalues for epochs in found.values() for runs in epochs.values() for run in runs]
    known = [spectrum for spectrum in spectra if spectrum is not None]
    open_ends = sum(int((~spectrum.converged).sum()) for spectrum in known)
    wanted = sum(len(spectrum.values) for spectrum in known)
    return NOTE + (f" {open_ends} of {wanted} eigenvalues did not converge." if open_ends else "")


def markdown(found: Found) -> str:
    """The table as Markdown, with its notes."""
    return f"{table(rows(found))}\n{notes(found)}\n"


def _cells(runs: Sequence[FlatnessResult]) -> tuple[str, ...]:
    spectra = [run.eigenvalues for run in runs if run.eigenvalues is not None]
    traces = [run.trace for run in runs if run.trace is not None]
    filters = [run.low_pass for run in runs if run.low_pass is not None]
    losses = [next(_losses(run), math.nan) for run in runs]
    return (
        _text(losses, [0.0] * len(losses)),
        _text([float(found.values[0]) for found in spectra], [0.0] * len(spectra)),
        _text([found.estimate for found in traces], [found.stderr for found in traces]),
        _text([found.estimate for found in filters], [found.stderr for found in filters]),
        _text([found.excess for found in filters], [found.stderr for found in filters]),
    )


def _losses(run: FlatnessResult) -> Iterator[float]:
    """The loss without noise, as each measurement saw it."""
    for found in (run.eigenvalues, run.trace, run.density, run.low_pass):
        if found is not None:
            yield float(found.settings["loss"] or 0.0)


def _text(values: Sequence[float], stderrs: Sequence[float]) -> str:
    """The mean with its spread over seeds, or one value with its standard error.

    >>> _text([12.345], [0.4]), _text([1.0, 3.0], [0.1, 0.1]), _text([], [])
    ('12.35 ± 0.4', '2 ± 1.4', '')
    """
    if not values:
        return ""
    spread = Spread.of(values)
    error = stderrs[0] if math.isnan(spread.std) else spread.std
    return f"{spread.mean:.4g} ± {error:.2g}" if error else f"{spread.mean:.4g}"
