"""Flatness as a table: one line for each group of runs and epoch, one column for each number of the measures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lesam.lab.flatness.measures import MEASURES
from lesam.lab.flatness.survey import FlatnessResult, Survey
from lesam.lab.runs.statistics import Spread

NOTE = (
    "The eigenvalue is the largest; LPF is the loss under weight noise. With n > 1: mean ± sample standard deviation "
    "(n - 1) over seeds; with n = 1 the standard error of the estimate."
)


def rows(survey: Survey) -> list[tuple[str, ...]]:
    """The head of the table and its lines."""
    headings = [column.heading for measure in MEASURES.values() for column in measure.columns.values()]
    lines = [
        (label, str(epoch), str(len(runs)), *_cells(runs))
        for label, epochs in survey.results.items()
        for epoch, runs in sorted(epochs.items())
    ]
    return [("method", "epoch", "n", "loss", *headings), *lines]


def layers(survey: Survey) -> list[tuple[str, ...]]:
    """The same for each layer: the largest eigenvalue and the trace of its own block of the Hessian."""
    lines: list[tuple[str, ...]] = [("method", "epoch", "n", "layer", "parameters", "eigenvalue", "trace")]
    for label, epochs in survey.of("layers").items():
        for epoch, found in sorted(epochs.items()):
            for index, name in enumerate(found[0].names):
                tops = [each.eigenvalues[index][0] for each in found]
                traces = [each.traces[index] for each in found]
                cells = _text(tops, [0.0]), _text(traces, [found[0].stderrs[index]])
                lines.append((label, str(epoch), str(len(found)), name, str(found[0].sizes[index]), *cells))
    return lines


def notes(survey: Survey) -> str:
    """What a reader has to know before using the numbers."""
    runs = [run for epochs in survey.results.values() for runs in epochs.values() for run in runs]
    spectra = [run["eigenvalues"] for run in runs if "eigenvalues" in run]
    unconverged = sum(int((~spectrum.converged).sum()) for spectrum in spectra)
    wanted = sum(len(spectrum.values) for spectrum in spectra)
    return " ".join([NOTE, *_how(runs)]) + (
        f" {unconverged} of {wanted} eigenvalues did not converge." if unconverged else ""
    )


def _how(runs: Sequence[FlatnessResult]) -> list[str]:
    """By which solver and with how many draws the numbers were found."""
    said = {
        "eigenvalues": "Eigenvalues: solver {method}, tolerance {tolerance:g}.",
        "trace": "Trace: {method}, {products} Hessian products.",
        "lpf": "LPF: {draws} draws.",
    }
    found = [text.format(**run[name].settings) for name, text in said.items() for run in runs if name in run]
    return list(dict.fromkeys(found))


def _cells(runs: Sequence[FlatnessResult]) -> list[str]:
    cells = [_text([_loss(run) for run in runs], [0.0] * len(runs))]
    for measure in MEASURES.values():
        found = [run[measure.name] for run in runs if measure.name in run]
        cells += [
            _text([column.value(each) for each in found], [column.stderr(each) for each in found])
            for column in measure.columns.values()
        ]
    return cells


def _loss(run: FlatnessResult) -> float:
    """The loss without noise, as the first measure saw it."""
    return next((float(result.settings["loss"] or 0.0) for result in run.found.values()), math.nan)


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
