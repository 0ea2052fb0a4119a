"""Docstrings as the code has them (Google style, a few reST roles) for a site in Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?P<kind>math|class|meth|func|mod|attr|data):`~?(?P<text>[^`]+)`")
#: sections that are called so in the code, and what the parser calls them
SECTIONS = {"Example": "Examples"}


def as_markdown(text: str) -> str:
    r"""One docstring.

    >>> as_markdown(r"The radius :math:`\rho` of :class:`Fixed`::")
    'The radius $\\rho$ of `Fixed`:'
    """
    text = ROLE.sub(
        lambda role: f"${_one_line(role['text'])}$" if role["kind"] == "math" else f"`{role['text']}`", text
    )
    text = re.sub(
        r"^\.\. math:: (.*(?:\n[ ]+.*)*)", lambda block: f"$${_one_line(block[1])}$$", text, flags=re.MULTILINE
    )
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    for ours, theirs in SECTIONS.items():
        text = re.sub(rf"^{ours}:$", f"{theirs}:", text, flags=re.MULTILINE)
    return re.sub(r"^References:\n((?:    .*\n?|\n)+)", _references, text, flags=re.MULTILINE)


def _one_line(formula: str) -> str:
    return " ".join(formula.split())


def _references(section: re.Match[str]) -> str:
    return f"**References.** {_one_line(section[1])}\n"


class Docstrings(griffe.Extension):
    """Changes every docstring on its way to the site."""

    def on_object(self, *, obj: griffe.Object, **options: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
