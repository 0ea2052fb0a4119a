"""Figures of flatness results on common axes: spectra with traces, low-pass filter over epochs, landscapes.

Needs matplotlib. Every function takes plain dictionaries of results keyed by label (an optimizer's name) and returns a
`matplotlib.figure.Figure`; `save` writes it as PNG and PDF. Where a result stands, a list of repetitions (seeds) may
stand too: then means are drawn, and standard deviations over the repetitions instead of standard errors. Colours,
dashes and how repetitions are summarised are arguments: a caller with many figures decides them once.
"""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from lesam.flatness._density import SpectralDensity
from lesam.flatness._eigenvalues import Eigenvalues
from lesam.flatness._landscape import Landscape
from lesam.flatness._lowpass import LowPass
from lesam.flatness._results import Measurement
from lesam.flatness._trace import TraceEstimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = TypeVar("Result", bound=Measurement)
Colours = Mapping[str, Any]
"""Label to any colour of matplotlib's; labels without one take the next of the cycle."""
Dashes = Mapping[str, str]
"""Label to any line style of matplotlib's; labels without one have solid lines."""
Summary = Callable[[Sequence[float]], tuple[float, float]]
"""From repetitions to their mean and spread; the spread of a single one is NaN."""
LINE = 0.22
"""Inches of a line of a legend."""
_ALONG = "{} direction (norms of filters)"


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (n - 1).

    >>> mean_and_deviation([1.0, 2.0, 3.0])
    (2.0, 1.0)
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan


def spectrum(
    eigenvalues: Mapping[str, Mapping[int, Eigenvalues | Sequence[Eigenvalues]]],
    traces: Mapping[str, Mapping[int, TraceEstimate | Sequence[TraceEstimate]]],
    *,
    colours: Colours | None = None,
    dashes: Dashes | None = None,
    summary: Summary = mean_and_deviation,
) -> Figure:
    """Distribution of the top eigenvalues, one panel for each epoch, and the trace with its error in the legends.

    Args:
        eigenvalues: Label to epoch to result, or to a list of repetitions, whose counts are averaged.
        traces: The same for traces; labels and epochs without one are left out.
        colours: Colours by label.
        dashes: Line styles by label.
        summary: How repetitions become one number with a spread.
    """
    epochs = sorted({epoch for results in eigenvalues.values() for epoch in results})
    if not epochs:
        raise ValueError("no eigenvalues to draw: give at least one label with one epoch")
    figure, axes = _panels(1, len(epochs), share=True)
    everything = [found for results in eigenvalues.values() for each in results.values() for found in _listed(each)]
    every = torch.cat([found.values for found in everything])
    bins = torch.linspace(float(every.min()), float(every.max()), 31, dtype=torch.float64).tolist()
    for axis, epoch in zip(axes, epochs, strict=True):
        for number, (label, results) in enumerate(eigenvalues.items()):
            if epoch not in results:
                continue
            found = _listed(results[epoch])
            text = f"{label}: $\\lambda_1$ {_text(summary([float(each.values[0]) for each in found]))}"
            estimates = _listed(traces.get(label, {}).get(epoch, []))
            if estimates:
                over_runs = summary([each.estimate for each in estimates])
                text += f", trace {_text(over_runs, estimates[0].stderr)}"
            pooled = torch.cat([each.values for each in found]).tolist()
            colour = _colour(colours, label, number)
            line = (dashes or {}).get(label, "-")
            shares = [1 / len(found)] * len(pooled)
            axis.hist(
                pooled, bins=bins, weights=shares, fc=(colour, 0.35), ec=colour, linewidth=1, label=text, linestyle=line
            )
        axis.set(title=f"epoch {epoch}", xlabel="Hessian eigenvalue")
        legend_below(axis)
    tallest = max(patch.get_height() for axis in axes for patch in axis.patches)
    if tallest > 10:  # with few counts a logarithmic scale has hardly a tick
        axes[0].set_yscale("symlog", linthresh=1)
    axes[0].set_ylabel("count")
    figure.set_figheight(figure.get_figheight() + LINE * (len(eigenvalues) + 1))
    return figure


def low_pass(
    results: Mapping[str, Mapping[int, LowPass | Sequence[LowPass]]],
    *,
    colours: Colours | None = None,
    dashes: Dashes | None = None,
    summary: Summary = mean_and_deviation,
) -> Figure:
    """The low-pass filter measure over epochs with its error, and what the noise adds to the loss.

    Args:
        results: Label to epoch to result, or to a list of repetitions.
        colours: Colours by label.
        dashes: Line styles by label.
        summary: How repetitions become one number with a spread.
    """
    if not any(results.values()):
        raise ValueError("no low-pass filter values to draw: give at least one label with one epoch")
    figure, axes = _panels(1, 2, share=False)
    repeated = False
    for number, (label, epochs) in enumerate(results.items()):
        order = sorted(epochs)
        found = [_listed(epochs[epoch]) for epoch in order]
        look: dict[str, Any] = {"color": _colour(colours, label, number), "linestyle": (dashes or {}).get(label, "-")}
        for axis, number_of in zip(axes, ("estimate", "excess"), strict=True):
            points = [summary([getattr(each, number_of) for each in runs]) for runs in found]
            errors = [_error(point, runs[0].stderr) for point, runs in zip(points, found, strict=True)]
            axis.errorbar(order, [mean for mean, _ in points], errors, label=label, marker=".", capsize=2, **look)
        repeated = repeated or any(len(runs) > 1 for runs in found)
    for axis, words in zip(axes, ("loss under weight noise", "added by the noise"), strict=True):
        axis.set(xlabel="epoch", ylabel=words)
        words = "± one standard deviation" if repeated else "± one standard error"
        axis.errorbar([], [], [], color="black", fmt="none", capsize=2, label=words)
        whole_epochs(axis)
    shared_legend(figure)
    return figure


def density(
    results: Mapping[str, Mapping[int, SpectralDensity | Sequence[SpectralDensity]]],
    *,
    colours: Colours | None = None,
    dashes: Dashes | None = None,
) -> Figure:
    """Density of the whole spectrum on a logarithmic scale, one panel for each epoch, one line for each repetition."""
    epochs = sorted({epoch for found in results.values() for epoch in found})
    if not epochs:
        raise ValueError("no spectral density to draw: give at least one label with one epoch")
    figure, axes = _panels(1, len(epochs), share=True)
    for axis, epoch in zip(axes, epochs, strict=True):
        for number, (label, found) in enumerate(results.items()):
            for first, each in enumerate(_listed(found.get(epoch, []))):
                # Below this, the tails of the smoothing Gaussians: gaps in the spectrum.
                seen = each.density.where(each.density > 1e-6 * each.density.max(), torch.nan)
                colour = _colour(colours, label, number)
                line, name = (dashes or {}).get(label, "-"), "" if first else label
                axis.plot(each.grid.tolist(), seen.tolist(), line, color=colour, label=name, linewidth=1)
        axis.set(title=f"epoch {epoch}", xlabel="Hessian eigenvalue", yscale="log")
    axes[0].set_ylabel("density")
    shared_legend(figure)
    return figure


def landscapes(
    results: Mapping[str, Landscape],
    kind: Literal["contour", "surface", "line"] = "contour",
    *,
    highest: float | None = None,
    levels: int = 20,
    colours: Colours | None = None,
    dashes: Dashes | None = None,
    beside: int = 4,
) -> Figure:
    """Landscapes side by side with the same levels, limits and view.

    Args:
        results: Label to landscape; planes for "contour" and "surface", lines for "line".
        kind: What to draw.
        highest: Losses above are cut; default the largest finite one.
        levels: Number of contour levels.
        colours: Colours by label, for lines.
        dashes: Line styles by label, for lines; without them, lines of the same colour differ in theirs.
        beside: Planes in one row; more take further rows.
    """
    if not results:
        raise ValueError("no landscape to draw")
    if any((found.y is None) != (kind == "line") for found in results.values()):
        raise ValueError(f"kind={kind!r} needs {'lines' if kind == 'line' else 'planes'} (dimensions of `landscape`)")
    known = torch.cat([found.loss[found.loss.isfinite()].reshape(-1) for found in results.values()])
    low, high = float(known.min()), float(known.max()) if highest is None else highest
    if kind == "line":
        figure, (axis,) = _panels(1, 1, share=True)
        for number, (label, found) in enumerate(results.items()):
            colour = _colour(colours, label, number)
            again = ("-", "--", ":", "-.")[[line.get_color() for line in axis.lines].count(colour) % 4]
            axis.plot(
                found.x.tolist(), found.loss.tolist(), (dashes or {}).get(label, again), label=label, color=colour
            )
        axis.set(xlabel=_ALONG.format("random"), ylabel="loss", ylim=(low - 0.03 * (high - low), high))
        axis.locator_params(axis="x", nbins=5)
        shared_legend(figure)
        return figure
    columns = min(len(results), beside)
    figure, axes = _panels(math.ceil(len(results) / columns), columns, share=True, surface=kind == "surface")
    for empty in axes[len(results) :]:
        empty.remove()
    axes = axes[: len(results)]
    steps = torch.linspace(low, high, levels).tolist()
    for axis, (label, found) in zip(axes, results.items(), strict=True):
        if found.y is None:
            continue
        y, x = torch.meshgrid(found.y, found.x, indexing="ij")
        if kind == "surface":
            cut = found.loss.clamp(max=high).numpy()
            drawn = axis.plot_surface(x.numpy(), y.numpy(), cut, cmap="viridis", vmin=low, vmax=high)
            axis.set_zlim(low, high)
            axis.view_init(elev=30, azim=-60)
            axis.locator_params(nbins=4)
        else:
            finite = found.loss.clamp(max=1e300).numpy()  # contours cannot pass infinity
            drawn = axis.contour(x.numpy(), y.numpy(), finite, levels=steps, cmap="viridis", vmin=low, vmax=high)
            axis.clabel(drawn, drawn.levels[1::3], fontsize=6, fmt="%.3g")
            axis.set_aspect("equal")
            axis.locator_params(nbins=5)
        axis.set_title(label)
        if kind == "contour":
            axis.set(xlabel=_ALONG.format("first"), ylabel=_ALONG.format("second"))
            axis.label_outer()
        else:
            axis.set(xlabel="first direction", ylabel="second direction")
    bar = _scale(low, high)
    figure.colorbar(bar, ax=axes, label="loss", shrink=0.8, pad=0.06 if kind == "surface" else 0.02)
    return figure


def whole_epochs(axis: Any) -> None:
    """No ticks between epochs, also where there are few of them or only one."""
    axis.locator_params(axis="x", integer=True, min_n_ticks=1)


def shared_legend(figure: Figure) -> int:
    """One legend below all panels, where it hides no curve however long its labels are; its number of lines."""
    entries: dict[str, Any] = {}
    known = [axis.get_legend_handles_labels() for axis in figure.axes]
    for handles, labels in sorted(known, key=lambda found: -len(found[1])):  # the fullest panel decides the order
        for handle, label in zip(handles, labels, strict=True):
            entries.setdefault(label, handle)
    if not entries:
        return 0
    columns = max(1, min(len(entries), int(figure.get_figwidth() / (0.45 + 0.065 * max(map(len, entries))))))
    figure.legend(entries.values(), entries, loc="outside lower center", ncols=columns, fontsize="small")
    return math.ceil(len(entries) / columns)


def legend_below(axis: Any) -> None:
    """The legend of one panel, under its own axis."""
    axis.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.2))


def save(figure: Figure, path: str | Path) -> list[Path]:
    """Write `path` with the suffixes .png and .pdf; the paths written."""
    written = [Path(path).with_suffix(suffix) for suffix in (".png", ".pdf")]
    written[0].parent.mkdir(parents=True, exist_ok=True)
    for target in written:
        target.write_bytes(drawn(figure, target.suffix[1:], dpi=200))
    return written


def drawn(figure: Figure, ending: str, *, dpi: int = 150, **options: Any) -> bytes:
    """The content of a file: letters of vector formats stay letters, in fonts that journals take, not outlines."""
    from matplotlib import rc_context

    content = io.BytesIO()
    with rc_context({"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}):
        figure.savefig(content, format=ending, dpi=dpi, **options)
    return content.getvalue()


def _scale(low: float, high: float) -> Any:
    """The colours of losses, for a colour bar that all panels share."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    return ScalarMappable(Normalize(low, high), cmap="viridis")


def _listed(results: Result | Sequence[Result]) -> Sequence[Result]:
    return [results] if isinstance(results, Measurement) else results


def _colour(colours: Colours | None, label: str, number: int) -> Any:
    return (colours or {}).get(label, f"C{number}")


def _error(point: tuple[float, float], stderr: float) -> float:
    """The spread over repetitions, or the standard error of a single one."""
    return stderr if math.isnan(point[1]) else point[1]


def _text(point: tuple[float, float], stderr: float = math.nan) -> str:
    """One value with its standard error, or the mean of several with their standard deviation."""
    error = _error(point, stderr)
    if math.isnan(error):
        return f"{point[0]:.4g}"
    return f"{point[0]:.4g} $\\pm$ {error:.0f}" if error >= 10 else f"{point[0]:.4g} $\\pm$ {error:.2g}"


def _panels(rows: int, columns: int, *, share: bool, surface: bool = False) -> tuple[Figure, list[Any]]:
    """A figure made without pyplot: nothing global, no window, safe in servers and threads."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * columns, 3.8 * rows), layout="constrained")
    axes = figure.subplots(
        rows,
        columns,
        squeeze=False,
        sharex=share and not surface,
        sharey=share and not surface,
        subplot_kw={"projection": "3d"} if surface else None,
    )
    return figure, list(axes.flat)
