"""One colour for each method, from a module that needs no plotting library."""

from __future__ import annotations

import subprocess
import sys

from lesam.lab.config.optimizer import methods
from lesam.lab.report.style import DASHES, colour, look, looks_of
from lesam.lab.runs.repetitions import Group
from tests.lab.running import smoke


def test_every_method_has_a_colour_of_its_own() -> None:
    assert len({colour(method) for method in methods()}) == len(methods())


def test_neither_a_colour_nor_a_figure_brings_pyplot() -> None:
    code = (
        "import sys; from lesam.lab.report.style import colour; colour('lesam'); print('matplotlib' in sys.modules); "
        "import lesam.lab.report.plots; print('matplotlib.pyplot' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", "False"]


def test_settings_of_a_method_share_its_colour_and_differ_in_their_dash() -> None:
    groups = [
        Group(config=smoke("digits", method=method), label=f"{method} {number}", place="", runs=())
        for method in ("lesam", "sam")
        for number in range(len(DASHES) + 2)
    ]
    looks = looks_of(groups)
    assert len({(each.colour, each.dash) for each in looks.values()}) == len(groups)
    assert [looks[f"lesam {number}"].colour for number in range(len(DASHES))] == [look("lesam").colour] * len(DASHES)
    assert look("lesam").name == "LE-SAM"
