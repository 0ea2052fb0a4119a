"""Docstrings as the code has them (Google style, a few reST roles) for a site in Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import griffe
import reference

ROLE = re.compile(r":(?P<kind>math|class|meth|func|mod|attr|data):`~?(?P<text>[^`]+)`")
DISPLAY = re.compile(r"^\.\. math:: (.*(?:\n[ ]+.*)*)", re.MULTILINE)
REFERENCES = re.compile(r"^References:\n((?:    .*\n?|\n)+)", re.MULTILINE)


def as_markdown(text: str, addresses: Mapping[str, str] = MappingProxyType({})) -> str:
    r"""One docstring; ``addresses`` says where the reference has a name.

    >>> as_markdown(r"The radius :math:`\rho` of :class:`Fixed`::")
    'The radius $\\rho$ of `Fixed`:'
    >>> as_markdown(":class:`Fixed`", {"Fixed": "lesam.Fixed"})
    '[`Fixed`][lesam.Fixed]'
    """

    def translated(role: re.Match[str]) -> str:
        if role["kind"] == "math":
            return f"${_one_line(role['text'])}$"
        address = addresses.get(role["text"])
        return f"[`{role['text']}`][{address}]" if address else f"`{role['text']}`"

    text = ROLE.sub(translated, text)
    text = DISPLAY.sub(lambda block: f"$${_one_line(block[1])}$$", text)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)  # what the parser calls them
    return REFERENCES.sub(lambda section: f"**References.** {_one_line(section[1])}\n", text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


class Docstrings(griffe.Extension):
    """Changes every docstring on its way to the site."""

    def on_object(self, *, obj: griffe.Object, **options: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring:
            addresses = reference.addresses(reference.load())
            obj.docstring.value = as_markdown(obj.docstring.value, addresses)
