"""Figures of flatness results on common axes: spectra with traces, low-pass filter over epochs, landscapes.

Needs matplotlib. Every function takes plain dictionaries of results keyed by label (an optimizer's name) and returns a
`matplotlib.figure.Figure`; `save` writes it as PNG and PDF.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from lesam.flatness._eigenvalues import Eigenvalues
from lesam.flatness._landscape import Landscape
from lesam.flatness._lowpass import LowPass
from lesam.flatness._trace import TraceEstimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def spectrum(
    eigenvalues: Mapping[str, Mapping[int, Eigenvalues]], traces: Mapping[str, Mapping[int, TraceEstimate]]
) -> Figure:
    """Distribution of the top eigenvalues, one panel for each epoch, and the trace with its error in the titles.

    Args:
        eigenvalues: Label to epoch to result.
        traces: The same for traces; labels and epochs without one are left out.
    """
    epochs = sorted({epoch for results in eigenvalues.values() for epoch in results})
    if not epochs:
        raise ValueError("no eigenvalues to draw: give at least one label with one epoch")
    figure, axes = _panels(1, len(epochs), share=True)
    every = torch.cat([found.values for results in eigenvalues.values() for found in results.values()])
    bins = torch.linspace(float(every.min()), float(every.max()), 31, dtype=torch.float64).tolist()
    for axis, epoch in zip(axes, epochs, strict=True):
        for label, results in eigenvalues.items():
            if epoch not in results:
                continue
            found, estimate = results[epoch], traces.get(label, {}).get(epoch)
            text = f"{label}: $\\lambda_1$ {found.values[0]:.3g}"
            if estimate is not None:
                text += f", trace {estimate.estimate:.4g} $\\pm$ {estimate.stderr:.2g}"
            axis.hist(found.values.tolist(), bins=bins, alpha=0.5, label=text)
        axis.set(title=f"epoch {epoch}", xlabel="Hessian eigenvalue", yscale="symlog")
        axis.legend(fontsize="small")
    axes[0].set_ylabel("count")
    return figure


def low_pass(results: Mapping[str, Mapping[int, LowPass]]) -> Figure:
    """The low-pass filter measure over epochs with its standard error, and what the noise adds to the loss."""
    figure, axes = _panels(1, 2, share=False)
    for label, epochs in results.items():
        order = sorted(epochs)
        found = [epochs[epoch] for epoch in order]
        axes[0].errorbar(order, [f.estimate for f in found], [f.stderr for f in found], label=label, capsize=2)
        axes[1].errorbar(order, [f.excess for f in found], [f.stderr for f in found], label=label, capsize=2)
    axes[0].set(xlabel="epoch", ylabel="loss under weight noise")
    axes[1].set(xlabel="epoch", ylabel="added by the noise")
    axes[0].legend()
    return figure


def landscapes(
    results: Mapping[str, Landscape],
    kind: Literal["contour", "surface", "line"] = "contour",
    *,
    highest: float | None = None,
    levels: int = 20,
) -> Figure:
    """Landscapes side by side with the same levels, limits and view.

    Args:
        results: Label to landscape; planes for "contour" and "surface", lines for "line".
        kind: What to draw.
        highest: Losses above are cut; default the largest finite one.
        levels: Number of contour levels.
    """
    if not results:
        raise ValueError("no landscape to draw")
    if any((found.y is None) != (kind == "line") for found in results.values()):
        raise ValueError(f"kind={kind!r} needs {'lines' if kind == 'line' else 'planes'} (dimensions of `landscape`)")
    known = torch.cat([found.loss[found.loss.isfinite()].reshape(-1) for found in results.values()])
    low, high = float(known.min()), float(known.max()) if highest is None else highest
    if kind == "line":
        figure, (axis,) = _panels(1, 1, share=True)
        for label, found in results.items():
            axis.plot(found.x.tolist(), found.loss.clamp(max=high).tolist(), label=label)
        axis.set(xlabel="along a random direction", ylabel="loss", ylim=(low, high))
        axis.legend()
        return figure
    figure, axes = _panels(1, len(results), share=True, surface=kind == "surface")
    steps = torch.linspace(low, high, levels).tolist()
    for axis, (label, found) in zip(axes, results.items(), strict=True):
        if found.y is None:
            continue
        y, x = torch.meshgrid(found.y, found.x, indexing="ij")
        loss = found.loss.clamp(max=high).numpy()
        if kind == "surface":
            axis.plot_surface(x.numpy(), y.numpy(), loss, cmap="viridis", vmin=low, vmax=high)
            axis.set_zlim(low, high)
            axis.view_init(elev=30, azim=-60)
        else:
            drawn = axis.contour(x.numpy(), y.numpy(), loss, levels=steps, cmap="viridis", vmin=low, vmax=high)
            axis.clabel(drawn, fontsize=6)
            axis.set_aspect("equal")
        axis.set_title(label)
    return figure


def save(figure: Figure, path: str | Path) -> list[Path]:
    """Write `path` with the suffixes .png and .pdf; the paths written."""
    written = [Path(path).with_suffix(suffix) for suffix in (".png", ".pdf")]
    written[0].parent.mkdir(parents=True, exist_ok=True)
    for target in written:
        figure.savefig(target, dpi=200)
    return written


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
