"""Measures of flatness: one record each, over which the command, the cache, tables, the tracker and plots iterate.

A new measure is one :class:`Measure` in :data:`MEASURES`, and a field of :class:`FlatnessSettings` for each of its
options, which is an option of ``lesam flatness`` as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional

from lesam.flatness import (
    Eigenvalues,
    HessianOperator,
    LayerCurvature,
    LowPass,
    Measurement,
    SpectralDensity,
    Storage,
    TraceEstimate,
    by_layer,
    low_pass_filter,
    spectral_density,
    top_eigenvalues,
    trace,
)

Mode = Literal["eval", "train"]

loss_function = functional.cross_entropy
"""Whatever a run was trained for: numbers of different methods and tasks are numbers of the same function."""


def accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Share of right answers."""
    return (outputs.argmax(1) == labels).double().mean()


@dataclass(frozen=True, kw_only=True, slots=True)
class FlatnessSettings:
    """What is measured, on which images and how. A number of 0 leaves a measure out."""

    samples: int = 5000
    """Training images to measure on, all of them where there are fewer."""
    batch_size: int = 500
    """Images of one pass."""
    subset_seed: int = 0
    """Of the choice of images."""
    mode: Mode = "eval"
    """BatchNorm on its running statistics, or (train) on those of each batch."""
    eigenvalues: int = 50
    """Largest eigenvalues to find; 0 for none."""
    method: Literal["lanczos", "power"] = "lanczos"
    """How to find them; power is what the paper names, and slow."""
    tolerance: float = 1e-3
    """Relative residual at which an eigenvalue counts as found."""
    trace_samples: int = 100
    """Random products for the trace; 0 for no trace."""
    density_draws: int = 0
    """Starting vectors for the density of the whole spectrum; 0 for no density."""
    density_steps: int = 80
    """Lanczos steps from each of them."""
    layer_eigenvalues: int = 0
    """Largest eigenvalues of each layer's own block of the Hessian, found with its trace; 0 for no layers."""
    lpf_sigma: float = 0.01
    """Standard deviation of the low-pass filter's noise on the weights."""
    lpf_samples: int = 20
    """Draws of that noise, the same for every checkpoint of every run of one architecture; 0 for no low-pass filter."""
    seed: int = 0
    """Of starting vectors, signs and noise."""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be meant."""
        for name in ("samples", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for measure in MEASURES.values():
            value = getattr(self, measure.amount)
            if value != 0 and value < measure.least:
                raise ValueError(
                    f"{measure.amount} must be at least {measure.least}, or 0 to leave it out, got {value}"
                )


CHEAPER: dict[str, Any] = {"samples": 1000, "eigenvalues": 5, "trace_samples": 20, "lpf_samples": 10}
"""Settings of ``lesam flatness`` below the paper's scale, where networks and time are small."""


def gradients(settings: FlatnessSettings) -> int:
    """About how many gradients of all images one checkpoint costs: a Hessian product is two, a loss is a third.

    Lanczos needs about four products for each eigenvalue.

    >>> gradients(FlatnessSettings()), gradients(FlatnessSettings(**CHEAPER))
    (607, 84)
    """
    products = 4 * settings.eigenvalues + settings.trace_samples + settings.density_draws * settings.density_steps
    return 2 * products + low_pass_gradients(settings)


def low_pass_gradients(settings: FlatnessSettings) -> int:
    """The same for one point of the low-pass filter over training.

    >>> low_pass_gradients(FlatnessSettings())
    7
    """
    return -(-settings.lpf_samples // 3)


class Surface:
    """The loss of one network on some images; its Hessian is made when a measure first needs it."""

    def __init__(self, model: nn.Module, images: Iterable[tuple[Tensor, Tensor]], mode: Mode = "eval") -> None:
        """Name the network, the images and the mode of BatchNorm."""
        self.model, self.images, self.mode = model, images, mode
        self._hessian: HessianOperator | None = None

    @property
    def hessian(self) -> HessianOperator:
        """The Hessian of the mean loss."""
        if self._hessian is None:
            self._hessian = HessianOperator(self.model, loss_function, self.images, mode=self.mode)
        return self._hessian


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A number of a measure's result: heading of its column in tables, label of its axis in figures."""

    heading: str
    label: str
    value: Callable[[Any], float]
    stderr: Callable[[Any], float] = lambda result: 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Tracking:
    """How a measure is taken while a run trains, more cheaply than afterwards."""

    name: str
    """Its name in ``record.track``."""
    options: Mapping[str, Any]
    columns: Mapping[str, Callable[[Any], float]]
    """Columns of ``metrics.jsonl``."""
    drawn: Mapping[str, str]
    """Those of them that figures show, and the column of tables that each corresponds to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """One measure of flatness."""

    name: str
    """In file names and messages."""
    result: type[Measurement]
    amount: str
    """The setting that says how much is measured; 0 leaves the measure out."""
    least: int
    options: Callable[[FlatnessSettings], dict[str, Any]]
    """What decides the result beside network, images and mode, by the names of ``take``."""
    take: Callable[..., Any]
    """Called with a :class:`Surface`, the options, and ``progress`` and ``storage`` (which decide nothing)."""
    columns: Mapping[str, Column] = field(default_factory=dict)
    """By the name of the number in results for machines."""
    tracking: Tracking | None = None


def _with_basis(measure: Callable[..., Measurement]) -> Callable[..., Measurement]:
    """A measure by Lanczos, which keeps a basis in ``storage``."""

    def take(surface: Surface, **options: Any) -> Measurement:
        return measure(surface.hessian, **options)

    return take


def _trace(surface: Surface, *, storage: Storage = "device", **options: Any) -> TraceEstimate:
    return trace(surface.hessian, **options)


def _by_layer(surface: Surface, **options: Any) -> LayerCurvature:
    return by_layer(surface.model, loss_function, surface.images, **options, mode=surface.mode)


def _low_pass(surface: Surface, *, storage: Storage = "device", **options: Any) -> LowPass:
    return low_pass_filter(surface.model, loss_function, surface.images, **options, mode=surface.mode)


MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure(
            name="eigenvalues",
            result=Eigenvalues,
            amount="eigenvalues",
            least=1,
            options=lambda chosen: {
                "k": chosen.eigenvalues,
                "method": chosen.method,
                "tolerance": chosen.tolerance,
                "seed": chosen.seed,
            },
            take=_with_basis(top_eigenvalues),
            columns={
                "top_eigenvalue": Column(
                    heading="eigenvalue",
                    label="largest Hessian eigenvalue",
                    value=lambda found: float(found.values[0]),
                )
            },
            tracking=Tracking(
                name="eigenvalue",
                # One eigenvalue of a network stands alone: a second start to look for copies of it would be waste.
                options={"k": 1, "confirm": False},
                columns={"eigenvalue": lambda found: float(found.values[0])},
                drawn={"eigenvalue": "top_eigenvalue"},
            ),
        ),
        Measure(
            name="trace",
            result=TraceEstimate,
            amount="trace_samples",
            least=2,
            options=lambda chosen: {"samples": chosen.trace_samples, "seed": chosen.seed},
            take=_trace,
            columns={
                "trace": Column(
                    heading="trace",
                    label="Hessian trace",
                    value=lambda found: found.estimate,
                    stderr=lambda found: found.stderr,
                )
            },
            tracking=Tracking(
                name="trace",
                options={"samples": 20},
                columns={"trace": lambda found: found.estimate, "trace_stderr": lambda found: found.stderr},
                drawn={"trace": "trace"},
            ),
        ),
        Measure(
            name="density",
            result=SpectralDensity,
            amount="density_draws",
            least=1,
            options=lambda chosen: {
                "draws": chosen.density_draws,
                "steps": chosen.density_steps,
                "seed": chosen.seed,
            },
            take=_with_basis(spectral_density),
        ),
        Measure(
            name="layers",
            result=LayerCurvature,
            amount="layer_eigenvalues",
            least=1,
            options=lambda chosen: {
                "k": chosen.layer_eigenvalues,
                "samples": max(chosen.trace_samples, 2),
                "tolerance": chosen.tolerance,
                "seed": chosen.seed,
            },
            take=_by_layer,
        ),
        Measure(
            name="lpf",
            result=LowPass,
            amount="lpf_samples",
            least=2,
            options=lambda chosen: {"sigma": chosen.lpf_sigma, "samples": chosen.lpf_samples, "seed": chosen.seed},
            take=_low_pass,
            columns={
                "low_pass": Column(
                    heading="LPF",
                    label="low-pass filter",
                    value=lambda found: found.estimate,
                    stderr=lambda found: found.stderr,
                ),
                "added_by_noise": Column(
                    heading="LPF - loss",
                    label="low-pass filter minus loss",
                    value=lambda found: found.excess,
                    stderr=lambda found: found.stderr,
                ),
            },
            tracking=Tracking(
                name="lpf",
                options={"sigma": 0.01, "samples": 20},
                columns={
                    "lpf": lambda found: found.estimate,
                    "lpf_stderr": lambda found: found.stderr,
                    "lpf_excess": lambda found: found.excess,
                },
                drawn={"lpf": "low_pass", "lpf_excess": "added_by_noise"},
            ),
        ),
    )
}
"""The measures by name, in the order of their columns."""

TRACKED: dict[str, Measure] = {
    measure.tracking.name: measure for measure in MEASURES.values() if measure.tracking is not None
}
"""What can be measured while a run trains, by its name in ``record.track``."""
