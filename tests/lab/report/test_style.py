"""One colour for each method, from a module that needs no plotting library."""

from __future__ import annotations

import subprocess
import sys

from lesam.lab.config.optimizer import methods
from lesam.lab.report.style import colour


def test_every_method_has_a_colour_of_its_own() -> None:
    assert len({colour(method) for method in methods()}) == len(methods())


def test_neither_a_colour_nor_a_figure_brings_pyplot() -> None:
    code = (
        "import sys; from lesam.lab.report.style import colour; colour('lesam'); print('matplotlib' in sys.modules); "
        "import lesam.lab.report.plots; print('matplotlib.pyplot' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", "False"]
