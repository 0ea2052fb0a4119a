"""Figures show the results' own numbers, on common axes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lesam.flatness import HessianOperator, landscape, low_pass_filter, top_eigenvalues, trace

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
    limits = {axis.get_zlim() if kind == "surface" else axis.get_ylim() for axis in figure.axes}
    assert len(limits) == 1
    figures.save(figure, tmp_path / kind)
    with pytest.raises(ValueError, match="needs"):
        figures.landscapes(results, "contour" if kind == "line" else "line")


def test_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="no landscape"):
        figures.landscapes({})
    with pytest.raises(ValueError, match="no eigenvalues"):
        figures.spectrum({}, {})
