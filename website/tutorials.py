"""Scripts with cells, run from top to bottom and shown with what they print and draw.

A cell begins with ``# %%``; one that begins with ``# %% [markdown]`` is text in comments. Editors run such a script
cell by cell, Python runs it whole, and nothing else is needed for either.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CELL = re.compile(r"^# %%(?P<kind>.*)\n(?P<body>(?:(?!# %%).*\n?)*)", re.MULTILINE)


@dataclass(frozen=True)
class Shown:
    """A tutorial as a page, and its pictures by file name."""

    markdown: str
    pictures: dict[str, bytes]


def cells(script: Path) -> list[tuple[bool, str]]:
    """Whether a cell is text, and what is in it."""
    found = [
        (cell["kind"].strip() == "[markdown]", cell["body"].strip("\n")) for cell in CELL.finditer(script.read_text())
    ]
    return [(text, re.sub(r"^# ?", "", body, flags=re.MULTILINE) if text else body) for text, body in found]


def run(script: Path) -> Shown:
    """Run every cell in one namespace; an exception in one of them is that of the script."""
    os.environ["MPLBACKEND"] = "Agg"
    pieces: list[str] = []
    pictures: dict[str, bytes] = {}
    namespace: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    shown: list[Any] = []
    for text, body in cells(script):
        if text:
            pieces.append(body)
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(body, str(script), "exec"), namespace)
        pieces.append(f"```python\n{body}\n```")
        if printed.getvalue():
            pieces.append(f"```{{ .text .output }}\n{printed.getvalue().rstrip()}\n```")
        for figure in figures(namespace):
            if not any(figure is one for one in shown):
                shown.append(figure)
                name = f"{script.stem}-{len(shown)}.png"
                file = io.BytesIO()
                figure.savefig(file, format="png", dpi=110)
                pictures[name] = file.getvalue()
                pieces.append(f"![What the cell above draws]({name})")
    return Shown("\n\n".join(pieces) + "\n", pictures)


def figures(namespace: dict[str, Any]) -> list[Any]:
    """Figures of matplotlib among the values of a namespace, drawn with pyplot or without."""
    drawing = sys.modules.get("matplotlib.figure")
    return [] if drawing is None else [value for value in namespace.values() if isinstance(value, drawing.Figure)]
