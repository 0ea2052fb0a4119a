"""Flatness of one run or of many, read from their folders where it was measured before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from lesam.flatness import Measurement, Storage
from lesam.lab.console import Watch
from lesam.lab.flatness.measures import MEASURES, FlatnessSettings, Measure, Surface
from lesam.lab.flatness.subject import Subject
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs.answers import Measured, answer
from lesam.lab.runs.folder import RunFolder

CURVE = "lpf"
"""The measure that is cheap enough for every kept checkpoint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlatnessResult:
    """What was measured at one checkpoint of one run, by the names of :data:`MEASURES`; what was left out is absent."""

    run: Path
    epoch: int
    """Number of finished epochs."""
    settings: FlatnessSettings
    found: Mapping[str, Any]

    def __getitem__(self, measure: str) -> Any:
        """The result of a measure."""
        return self.found[measure]

    def __contains__(self, measure: str) -> bool:
        """Whether a measure was taken."""
        return measure in self.found

    def numbers(self) -> dict[str, float]:
        """Every number of the tables, by its name."""
        return {
            name: column.value(result)
            for measure, result in self.found.items()
            for name, column in MEASURES[measure].columns.items()
        }


def measure_run(
    run: RunFolder,
    *,
    epoch: int | None = None,
    settings: FlatnessSettings | None = None,
    progress: Watch | None = None,
    device: torch.device | str | None = None,
    storage: Storage = "device",
) -> FlatnessResult:
    """Measure a run at one of its kept checkpoints, or read what was measured there before.

    Args:
        run: The run's folder.
        epoch: Number of finished epochs; None takes the last kept checkpoint.
        settings: What to measure; the defaults for None.
        progress: Called when a measurement begins; cached ones do not begin.
        device: Where to measure; None takes CUDA where there is one.
        storage: Where Lanczos keeps its basis, see :func:`lesam.flatness.top_eigenvalues`.

    Raises:
        ValueError: There is no such checkpoint (the sentence lists those that exist).
    """
    chosen = settings or FlatnessSettings()
    after = checkpoints.find(run.checkpoints, epoch).epoch
    measuring = _Measuring(run, chosen, progress, device, storage)
    wanted = [measure for measure in MEASURES.values() if getattr(chosen, measure.amount)]
    found = {measure.name: measuring.result(measure, after) for measure in wanted}
    return FlatnessResult(run=run.path, epoch=after, settings=chosen, found=found)


def measure_curve(
    run: RunFolder,
    *,
    settings: FlatnessSettings | None = None,
    progress: Watch | None = None,
    device: torch.device | str | None = None,
) -> dict[int, Any]:
    """The low-pass filter measure at every kept checkpoint, by the number of finished epochs."""
    measuring = _Measuring(run, settings or FlatnessSettings(), progress, device, "device")
    return {
        epoch: measuring.result(MEASURES[CURVE], epoch) for epoch in sorted(checkpoints.epoch_ends(run.checkpoints))
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What was measured of many runs, by label and number of finished epochs, repetitions together."""

    results: dict[str, dict[int, list[FlatnessResult]]] = field(default_factory=dict)
    curves: dict[str, dict[int, list[Any]]] = field(default_factory=dict)
    """The low-pass filter at every kept checkpoint."""
    left_out: list[str] = field(default_factory=list)
    """Runs that could not be measured, and why."""

    def of(self, measure: str) -> dict[str, dict[int, list[Any]]]:
        """One measure, for the labels and epochs that have it."""
        return {
            label: {epoch: [run[measure] for run in runs] for epoch, runs in epochs.items() if measure in runs[0]}
            for label, epochs in self.results.items()
        }


def survey(
    runs: Mapping[str, Sequence[RunFolder]],
    epochs: Callable[[RunFolder], Sequence[int | None]],
    *,
    settings: FlatnessSettings,
    curve_samples: int | None = None,
    progress: Callable[[str, RunFolder], Watch | None] = lambda label, run: None,
    device: torch.device | str | None = None,
    storage: Storage = "device",
    skip_failures: bool = False,
) -> Survey:
    """Measure runs at some of their checkpoints, and the low-pass filter at every kept one.

    Args:
        runs: Repetitions by label.
        epochs: Numbers of finished epochs at which to measure a run; None is the last kept one.
        settings: What to measure.
        curve_samples: At most this number of draws at each point of the curve; by default as many as in the settings.
        progress: For a label and a run, what is called when a measurement of it begins.
        device: Where to measure; None takes CUDA where there is one.
        storage: Where Lanczos keeps its basis.
        skip_failures: Leave a run out that cannot be measured, as one that diverged, instead of raising.
    """
    found = Survey()
    along = settings
    if curve_samples is not None:
        along = replace(settings, lpf_samples=min(settings.lpf_samples, curve_samples))
    for label, repetitions in runs.items():
        for run in repetitions:
            watch = progress(label, run)
            try:
                results = [
                    measure_run(run, epoch=epoch, settings=settings, progress=watch, device=device, storage=storage)
                    for epoch in epochs(run)
                ]
                curve = measure_curve(run, settings=along, progress=watch, device=device) if along.lpf_samples else {}
            except ValueError as error:
                if not skip_failures:
                    raise
                found.left_out.append(f"{run.path.name} was left out: {error}")
                continue
            for result in results:
                found.results.setdefault(label, {}).setdefault(result.epoch, []).append(result)
            for epoch, point in curve.items():
                found.curves.setdefault(label, {}).setdefault(epoch, []).append(point)
    return found


class _Measuring:
    """The measures of one run, each kept under what decides it."""

    def __init__(
        self,
        run: RunFolder,
        settings: FlatnessSettings,
        progress: Watch | None,
        device: torch.device | str | None,
        storage: Storage,
    ) -> None:
        self._settings, self._storage = settings, storage
        self._watch: Watch = (lambda name: lambda done, total: None) if progress is None else progress
        self._subject = Subject(
            run,
            samples=settings.samples,
            batch_size=settings.batch_size,
            subset_seed=settings.subset_seed,
            device=device,
        )
        self._surfaces: dict[int, Surface] = {}

    def result(self, measure: Measure, epoch: int) -> Any:
        """The kept result of a measure after an epoch, or a new one."""
        options = measure.options(self._settings)
        decides = {"mode": self._settings.mode} | {f"{measure.name}.{name}": value for name, value in options.items()}
        question = self._subject.question(epoch, measure.name, decides)

        def take() -> Measurement:
            watch = self._watch(f"epoch {epoch}, {measure.name}")
            taken: Measurement = measure.take(self._surface(epoch), **options, storage=self._storage, progress=watch)
            return taken

        return answer(question, Measured(measure.result), take)

    def _surface(self, epoch: int) -> Surface:
        """The loss after an epoch; only the last one asked for is kept."""
        if epoch not in self._surfaces:
            subject = self._subject
            self._surfaces = {epoch: Surface(subject.model(epoch), subject.images, self._settings.mode)}
        return self._surfaces[epoch]
