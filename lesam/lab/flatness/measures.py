"""Flatness of trained runs: eigenvalues, trace, spectral density and low-pass filter, cached in the run's folder.

``RUN/flatness/epoch-0200-trace-1a2b3c4d5e.json`` holds one result. The digits are a hash of everything that decides it
(weights, images, options), so another question never finds this answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from lesam.flatness import (
    Eigenvalues,
    HessianOperator,
    LowPass,
    Measurement,
    Progress,
    SpectralDensity,
    Storage,
    TraceEstimate,
    cached,
    low_pass_filter,
    spectral_density,
    top_eigenvalues,
    trace,
)
from lesam.lab.config.run import digest
from lesam.lab.flatness.subject import Bench, Watch, kept, kept_epoch, loss_function
from lesam.lab.runs.folder import RunFolder

Result = TypeVar("Result", bound=Measurement)


@dataclass(frozen=True, kw_only=True, slots=True)
class FlatnessSettings:
    """What is measured, on which images and how. A number of 0 leaves a measure out."""

    samples: int = 5000
    """Training images, all of them where there are fewer."""
    batch_size: int = 500
    subset_seed: int = 0
    """Of the choice of images."""
    mode: Literal["eval", "train"] = "eval"
    """BatchNorm on its running statistics, or on those of each batch."""
    eigenvalues: int = 50
    method: Literal["lanczos", "power"] = "lanczos"
    tolerance: float = 1e-3
    trace_samples: int = 100
    density_draws: int = 0
    density_steps: int = 80
    lpf_sigma: float = 0.01
    lpf_samples: int = 20
    """Draws of noise. Draw i is the same for every checkpoint of every run of one architecture."""
    seed: int = 0
    """Of starting vectors, signs and noise."""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be meant."""
        for name in ("samples", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name, least in (("eigenvalues", 1), ("trace_samples", 2), ("density_draws", 1), ("lpf_samples", 2)):
            value = getattr(self, name)
            if value != 0 and value < least:
                raise ValueError(f"{name} must be at least {least}, or 0 to leave it out, got {value}")


@dataclass(frozen=True, kw_only=True, slots=True)
class FlatnessResult:
    """What was measured at one checkpoint of one run; None for what was left out."""

    run: Path
    epoch: int
    """Number of finished epochs."""
    settings: FlatnessSettings
    eigenvalues: Eigenvalues | None
    trace: TraceEstimate | None
    density: SpectralDensity | None
    low_pass: LowPass | None


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
        progress: Told when a measurement begins; cached ones do not begin.
        device: Where to measure; None takes CUDA where there is one.
        storage: Where Lanczos keeps its basis, see :func:`lesam.flatness.top_eigenvalues`.

    Raises:
        ValueError: There is no such checkpoint (the sentence lists those that exist).
    """
    chosen = settings or FlatnessSettings()
    measures = _Measures(run, chosen, progress, device, storage)
    after = kept_epoch(run, epoch)
    return FlatnessResult(
        run=run.path,
        epoch=after,
        settings=chosen,
        eigenvalues=measures.eigenvalues(after) if chosen.eigenvalues else None,
        trace=measures.trace(after) if chosen.trace_samples else None,
        density=measures.density(after) if chosen.density_draws else None,
        low_pass=measures.low_pass(after) if chosen.lpf_samples else None,
    )


def low_pass_curve(
    run: RunFolder,
    *,
    settings: FlatnessSettings | None = None,
    progress: Watch | None = None,
    device: torch.device | str | None = None,
) -> dict[int, LowPass]:
    """The low-pass filter measure at every kept checkpoint, by the number of finished epochs."""
    measures = _Measures(run, settings or FlatnessSettings(), progress, device, "device")
    return {epoch: measures.low_pass(epoch) for epoch in sorted(kept(run))}


class _Measures:
    """The measures of one run, each cached under what decides it."""

    def __init__(
        self,
        run: RunFolder,
        settings: FlatnessSettings,
        progress: Watch | None,
        device: torch.device | str | None,
        storage: Storage,
    ) -> None:
        self.settings, self.storage = settings, storage
        self._watch: Watch = (lambda name: lambda done, total: None) if progress is None else progress
        self._bench = Bench(
            run,
            samples=settings.samples,
            batch_size=settings.batch_size,
            subset_seed=settings.subset_seed,
            device=device,
        )
        self._operators: dict[int, HessianOperator] = {}

    def eigenvalues(self, epoch: int) -> Eigenvalues:
        chosen = self.settings
        options: dict[str, Any] = {"k": chosen.eigenvalues, "method": chosen.method, "tolerance": chosen.tolerance}
        options["seed"] = chosen.seed

        def measure(progress: Progress) -> Eigenvalues:
            return top_eigenvalues(self._hessian(epoch), **options, storage=self.storage, progress=progress)

        return self._cached("eigenvalues", Eigenvalues, epoch, options, measure)

    def trace(self, epoch: int) -> TraceEstimate:
        options: dict[str, Any] = {"samples": self.settings.trace_samples, "seed": self.settings.seed}

        def measure(progress: Progress) -> TraceEstimate:
            return trace(self._hessian(epoch), **options, progress=progress)

        return self._cached("trace", TraceEstimate, epoch, options, measure)

    def density(self, epoch: int) -> SpectralDensity:
        chosen = self.settings
        options: dict[str, Any] = {"draws": chosen.density_draws, "steps": chosen.density_steps, "seed": chosen.seed}

        def measure(progress: Progress) -> SpectralDensity:
            return spectral_density(self._hessian(epoch), **options, storage=self.storage, progress=progress)

        return self._cached("density", SpectralDensity, epoch, options, measure)

    def low_pass(self, epoch: int) -> LowPass:
        chosen = self.settings
        options: dict[str, Any] = {"sigma": chosen.lpf_sigma, "samples": chosen.lpf_samples, "seed": chosen.seed}

        def measure(progress: Progress) -> LowPass:
            model = self._bench.model(epoch)
            return low_pass_filter(
                model, loss_function, self._bench.images, **options, mode=chosen.mode, progress=progress
            )

        return self._cached("lpf", LowPass, epoch, options, measure)

    def _hessian(self, epoch: int) -> HessianOperator:
        if epoch not in self._operators:
            model, images = self._bench.model(epoch), self._bench.images
            self._operators = {epoch: HessianOperator(model, loss_function, images, mode=self.settings.mode)}
        return self._operators[epoch]

    def _cached(
        self,
        name: str,
        kind: type[Result],
        epoch: int,
        options: dict[str, Any],
        measure: Callable[[Progress], Result],
    ) -> Result:
        key = self._bench.key(epoch) | {"mode": self.settings.mode} | {f"{name}.{o}": v for o, v in options.items()}
        path = self._bench.run.path / "flatness" / f"epoch-{epoch:04d}-{name}-{digest(key)}.json"
        return cached(path, kind, key, lambda: measure(self._watch(f"epoch {epoch}, {name}")))
