"""Formulas to MathML while the site is built, so that a browser needs no script for them."""

from __future__ import annotations

import html
import re
from xml.etree import ElementTree

from latex2mathml.converter import convert

MATHML = "{http://www.w3.org/1998/Math/MathML}"
ElementTree.register_namespace("", MATHML.strip("{}"))
#: bars of norms and absolute values, and slashes: neither relations nor as tall as their surroundings
CLOSE = ("|", "‖", "/")
#: what Markdown leaves of a formula, in a line or on its own
MARKED = re.compile(
    r'<span class="arithmatex">\\\((?P<inline>.*?)\\\)</span>|<div class="arithmatex">\\\[(?P<block>.*?)\\\]</div>',
    re.DOTALL,
)
#: text of a page that is not code
CODE = re.compile(r"<(pre|code|script|style|math)\b.*?</\1>", re.DOTALL)
#: what a formula that nobody recognised looks like to a reader
LEFT = re.compile(
    r"\$\$|\$[^\s$][^$\n]*\\[a-zA-Z]+[^$\n]*\$|\\\(|\\\[|\\(?:frac|hat|rho|sigma|epsilon|lVert|begin)\b|:math:"
)


class UnrenderedFormulaError(ValueError):
    """A formula that would be shown as its source."""


def render(page: str) -> str:
    r"""The page with every marked formula as MathML; raises where one is not understood, or was not marked.

    >>> render(r'<span class="arithmatex">\(x^2\)</span>').count("<msup>")
    1
    """
    page = MARKED.sub(lambda match: _element(match["inline"] or match["block"], match["block"] is not None), page)
    if left := LEFT.search(CODE.sub("", page)):
        raise UnrenderedFormulaError(f"a formula was not recognised: {left[0][:80]!r}")
    return page


def render_heading(title: str) -> str:
    """An entry of the list of headings, where Markdown has left the formula's text alone."""
    return re.sub(r"\\\((.*?)\\\)", lambda match: _element(match[1], block=False), title)


def _element(escaped: str, block: bool) -> str:
    source = html.unescape(escaped).strip()
    # The converter knows the starred `align`, which outside of a display is the same.
    text = convert(re.sub(r"\{aligned\}", "{align*}", source), display="block" if block else "inline")
    # An unknown command comes back as an identifier, and a misplaced & as itself.
    if unknown := re.search(r">\s*(\\[^<]*|&)<", text):
        raise UnrenderedFormulaError(f"{html.unescape(unknown[1])!r} is not known in the formula {source!r}")
    element = ElementTree.fromstring(text)
    for node in element.iter():
        if node.tag == MATHML + "mo" and node.text in CLOSE:
            node.attrib.update({"stretchy": "false", "lspace": "0", "rspace": "0"})
        elif block and node.tag == MATHML + "msub" and node[0].text in ("min", "max"):
            node.tag = MATHML + "munder"
    text = ElementTree.tostring(element, encoding="unicode")
    return f'<div class="formula">{text}</div>' if block else text
