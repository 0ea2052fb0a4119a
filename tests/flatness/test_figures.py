"""Figures show the results' own numbers, on common axes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lesam.flatness import HessianOperator, landscape, low_pass_filter, spectral_density, top_eigenvalues, trace

from .problems import mlp

pytest.importorskip("matplotlib")
from lesam.flatness import figures


def scaled(factor: float):
    problem = mlp()
    with torch.no_grad():
        for p in problem.model.parameters():
            p.mul_(factor)
    return problem.model, problem.loss_fn, problem.data


def test_spectrum_counts_every_eigenvalue_in_common_bins(tmp_path: Path) -> None:
    values, traces = {}, {}
    for label, factor in (("sharp", 2.0), ("flat", 0.5)):
        operator = HessianOperator(*scaled(factor))
        values[label] = {100: top_eigenvalues(operator, 5), 200: top_eigenvalues(operator, 5)}
        traces[label] = {100: trace(operator, 10)}
    figure = figures.spectrum(values, traces)
    assert [axis.get_title() for axis in figure.axes] == ["epoch 100", "epoch 200"]
    for axis in figure.axes:
        assert sum(patch.get_height() for patch in axis.patches) == 10
    assert figure.axes[0].get_yscale() == "linear"  # few counts
    text = [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
    assert f"{traces['flat'][100].estimate:.4g}" in text[1]
    for path in figures.save(figure, tmp_path / "deep" / "spectrum.png"):
        assert path.stat().st_size > 1000
    assert {p.suffix for p in (tmp_path / "deep").iterdir()} == {".png", ".pdf"}


def test_low_pass_curves_are_the_estimates() -> None:
    found = {epoch: low_pass_filter(*scaled(1.0 + epoch), samples=3) for epoch in (2, 1)}
    figure = figures.low_pass({"SGD": found})
    drawn = figure.axes[0].lines[0].get_xydata()
    np.testing.assert_allclose(drawn, [[1, found[1].estimate], [2, found[2].estimate]])


@pytest.mark.parametrize("kind", ["contour", "surface", "line"])
def test_landscapes_share_their_limits(kind, tmp_path: Path) -> None:
    dimensions = 1 if kind == "line" else 2
    results = {str(f): landscape(*scaled(f), points=5, dimensions=dimensions) for f in (0.5, 2.0)}
    figure = figures.landscapes(results, kind)
    planes = [axis for axis in figure.axes if kind == "line" or axis.get_title()]
    limits = {axis.get_zlim() if kind == "surface" else axis.get_ylim() for axis in planes}
    assert len(limits) == 1
    assert all("direction" in axis.get_xlabel() for axis in planes[:1])
    bars = [axis.get_ylabel() for axis in figure.axes if axis not in planes]
    assert bars == ([] if kind == "line" else ["loss"])  # one colour bar for all panels
    figures.save(figure, tmp_path / kind)
    with pytest.raises(ValueError, match="needs"):
        figures.landscapes(results, "contour" if kind == "line" else "line")


def test_many_landscapes_take_further_rows() -> None:
    plane = landscape(*scaled(1.0), points=3)
    figure = figures.landscapes({f"run {number}": plane for number in range(6)})
    figure.draw_without_rendering()
    tops = [round(axis.get_position().y1, 3) for axis in figure.axes if axis.get_title()]
    assert len(tops) == 6
    assert len(set(tops)) == 2


def test_legends_lie_outside_of_the_panels() -> None:
    operator = HessianOperator(*scaled(1.0))
    names = ("a method with a name that is rather long", "another one, warmed up and annealed", "a third")
    drawn = [
        figures.spectrum(
            {name: {1: top_eigenvalues(operator, 2)} for name in names},
            {name: {1: trace(operator, 2)} for name in names},
        ),
        figures.low_pass({name: {1: low_pass_filter(*scaled(1.0), samples=2)} for name in names}),
        figures.density({name: {1: spectral_density(operator, draws=1, steps=3)} for name in names}),
        figures.landscapes({name: landscape(*scaled(1.0), points=3, dimensions=1) for name in names}, "line"),
    ]
    for figure in drawn:
        figure.draw_without_rendering()
        own = [axis.get_legend() for axis in figure.axes]
        legends = [legend for legend in (*figure.legends, *own) if legend is not None]
        assert legends
        for legend in legends:
            assert not any(legend.get_window_extent().overlaps(axis.get_window_extent()) for axis in figure.axes)


def test_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="no landscape"):
        figures.landscapes({})
    with pytest.raises(ValueError, match="no eigenvalues"):
        figures.spectrum({}, {})


def test_repetitions_are_averaged_and_their_spread_shown() -> None:
    operators = [HessianOperator(*scaled(factor)) for factor in (0.5, 1.0, 1.5)]
    spectra = [top_eigenvalues(operator, 5) for operator in operators]
    traces = [trace(operator, 10) for operator in operators]
    figure = figures.spectrum({"SGD": {3: spectra}}, {"SGD": {3: traces}}, colours={"SGD": "red"})
    (axis,) = figure.axes
    assert sum(patch.get_height() for patch in axis.patches) == pytest.approx(5)  # the mean count of three runs
    assert axis.patches[0].get_edgecolor() == (1.0, 0.0, 0.0, 1.0)
    (text,) = [t.get_text() for t in axis.get_legend().get_texts()]
    estimates = np.array([found.estimate for found in traces])
    assert f"trace {estimates.mean():.4g} $\\pm$ {estimates.std(ddof=1):.2g}" in text

    filters = [low_pass_filter(*scaled(factor), samples=3) for factor in (0.5, 1.5)]
    values = np.array([found.excess for found in filters])
    right = figures.low_pass({"SGD": {7: filters}}).axes[1]
    np.testing.assert_allclose(right.lines[0].get_xydata(), [[7, values.mean()]])
    (segment,) = right.collections[0].get_segments()
    np.testing.assert_allclose(segment[:, 1], values.mean() + values.std(ddof=1) * np.array([-1, 1]))


def test_density_is_drawn_where_there_is_a_spectrum() -> None:
    found = spectral_density(HessianOperator(*scaled(1.0)), draws=1, steps=5, width=1e-3)
    (axis,) = figures.density({"SGD": {1: found}}).axes
    drawn = axis.lines[0].get_ydata()
    seen = np.isfinite(drawn)
    assert 0 < seen.sum() < len(drawn)
    np.testing.assert_array_equal(drawn[seen], found.density.numpy()[seen])


def test_lines_are_not_bent_at_the_limit() -> None:
    results = {name: landscape(*scaled(2.0), points=5, dimensions=1) for name in ("one", "two")}
    highest = float(results["one"].loss.median())
    (axis,) = figures.landscapes(results, "line", highest=highest, colours=dict.fromkeys(results, "red")).axes
    np.testing.assert_array_equal(axis.lines[0].get_ydata(), results["one"].loss.numpy())
    assert axis.get_ylim()[1] == highest
    assert axis.get_legend() is None  # it stands below the lines
    assert [text.get_text() for text in axis.figure.legends[0].get_texts()] == ["one", "two"]
    assert axis.lines[0].get_linestyle() != axis.lines[1].get_linestyle()  # equal colours: told apart otherwise
