"""Figures at the size of a paper's column or page: the same panels in as many rows as they need, with small letters."""

from __future__ import annotations

import math
from typing import Literal

from matplotlib.figure import Figure
from matplotlib.text import Text

from lesam.flatness.figures import shared_legend

WIDTHS = {"column": 3.3, "page": 6.9}
"""Inches, as in two-column proceedings."""
PANELS = {"column": 1, "page": 2}
"""Side by side."""
HEIGHT, LINE = 2.1, 0.17
"""Inches of a panel, and of a line of the legend."""
PLANE = 2.4
"""Inches of a landscape."""
LETTERS = 8.0
"""Points."""


Size = Literal["screen", "column", "page"]


def shrink(figure: Figure, size: Size) -> None:
    """Give a figure the width of a column or a page, its panels where they are, with small letters."""
    if size != "screen":
        for text in figure.findobj(Text):
            text.set_fontsize(LETTERS)
        width, height = figure.get_size_inches()
        # Letters keep their size, so that rows must not become as flat as the figure becomes narrow.
        places = [axis.get_subplotspec() for axis in figure.axes]
        rows = len({place.rowspan.start for place in places if place is not None})
        figure.set_size_inches(WIDTHS[size], max(height * WIDTHS[size] / width, rows * PLANE))


def fit(figure: Figure, size: Size) -> None:
    """Arrange the panels of a figure anew so that it needs no scaling in print; its legend moves below them."""
    if size == "screen":
        return
    axes = list(figure.axes)
    columns = min(PANELS[size], len(axes))
    rows = math.ceil(len(axes) / columns)
    grid = figure.add_gridspec(rows, columns)
    for number, axis in enumerate(axes):
        axis.set_subplotspec(grid[number // columns, number % columns])
        axis.tick_params(labelsize=LETTERS)
    for legend in [*figure.legends, *(legend for axis in axes if (legend := axis.get_legend()) is not None)]:
        legend.remove()
    figure.set_size_inches(WIDTHS[size], rows * HEIGHT)
    lines = shared_legend(figure)
    for text in figure.findobj(Text):
        text.set_fontsize(LETTERS)
    figure.set_size_inches(WIDTHS[size], rows * HEIGHT + lines * LINE)
    figure.draw_without_rendering()  # places are found in two rounds: what a panel needs depends on its size
