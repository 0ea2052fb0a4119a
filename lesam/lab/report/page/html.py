"""The page as HTML: every table and sentence written here, escaped; figures are drawn by the page's own script.

A Content-Security-Policy lets the browser run the two scripts of the page, named by their hashes, and nothing else; no
request leaves the page. Text of run folders reaches HTML through :func:`escape` alone, and the script as JSON in an
element that is not executed.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from lesam.lab.report.page.content import Content

SCRIPTS = ("tables.js", "charts.js", "landscapes.js", "page.js")


def page(content: Content, *, refresh: float | None = None) -> str:
    """The whole page, which needs no network and no other file.

    Args:
        content: What it shows.
        refresh: Seconds after which a served page asks for its content again; None for a page in a file.
    """
    plotly, own, style = plotly_script(), own_script(), _asset("page.css")
    live = "" if refresh is None else f' data-refresh="{refresh:g}"'
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"{live}>',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy(live=refresh is not None)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{escape(content['title'])}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            body(content),
            f"<script>{plotly}</script>",
            f"<script>{own}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def body(content: Content) -> str:
    """What changes when runs advance: all that is read, and the data of the figures."""
    return "\n".join(
        [
            f'<div id="content"><a class="skip" href="#main">Skip to the content</a>{_header(content)}',
            f'<main id="main">{_headline(content)}',
            *(_section(section, content) for section in content["sections"]),
            _missing(content),
            _problems(content),
            "</main></div>",
            f'<script type="application/json" id="data">{embedded(content)}</script>',
        ]
    )


def embedded(value: Any) -> str:
    r"""JSON that no HTML parser can see the end of an element in.

    >>> print(embedded({"name": "</script>"}))
    {"name":"\u003c/script>"}
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def policy(*, live: bool) -> str:
    """What the browser may do: run the page's own scripts, draw, and, where it is served, ask its server again."""
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in (plotly_script(), own_script()))
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


@cache
def plotly_script() -> str:
    """Plotly's library, as its package brings it."""
    import plotly

    text = files(plotly).joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    if "</script" in text.lower():
        raise RuntimeError("this version of plotly cannot be put into a page: its script holds the end of an element")
    return text


@cache
def own_script() -> str:
    """The page's own script."""
    return "\n".join(map(_asset, SCRIPTS))


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _header(content: Content) -> str:
    links = "".join(f'<a href="#{section["id"]}">{escape(section["title"])}</a>' for section in content["sections"])
    return (
        f"<header><h1>{escape(content['title'])}</h1>"
        f'<p class="made">Made {escape(content["made"])} by lesam {escape(content["version"])}. '
        '<span id="state" role="status"></span></p>'
        f'<nav aria-label="Sections">{links}</nav></header>'
        f'<div class="bar" id="bar">{_places(content)}{_axes()}'
        '<button type="button" id="theme">Light or dark</button>'
        '<button type="button" id="json">All data (JSON)</button>'
        f"{_legend(content)}</div>"
        '<noscript><p class="note">Figures, sorting and filters need JavaScript, the tables do not.</p></noscript>'
    )


def _places(content: Content) -> str:
    if len(content["places"]) < 2:
        return ""
    options = "".join(f"<option>{escape(place)}</option>" for place in content["places"])
    return f'<label>Recipe and scale <select id="place"><option value="">all</option>{options}</select></label>'


def _axes() -> str:
    choices = "".join(
        f'<label><input type="radio" name="axis" value="{name}"{" checked" if name == "epoch" else ""}> {words}</label>'
        for name, words in (("epoch", "epochs"), ("passes", "passes"), ("seconds", "seconds"))
    )
    return f'<fieldset class="axis"><legend>Curves over</legend>{choices}</fieldset>'


def _legend(content: Content) -> str:
    """One legend for all figures: a box for each method, with its line."""
    dashes = {"-": "", "--": "7 4", ":": "2 3", "-.": "7 3 2 3"}
    boxes = "".join(
        f'<label data-place="{escape(group["place"])}">'
        f'<input type="checkbox" class="method" data-key="{group["key"]}" value="{escape(group["name"])}" checked>'
        f'<svg width="26" height="8" aria-hidden="true"><line x1="0" y1="4" x2="26" y2="4" stroke-width="2.5" '
        f'stroke="{escape(group["colour"])}" stroke-dasharray="{dashes[group["dash"]]}"/></svg>'
        f"{escape(group['name'])}</label>"
        for group in content["groups"]
        if group["drawn"]
    )
    cut = content["left_out"]
    note = f" (the best of each place; {cut} more are in the tables)" if cut else ""
    return f'<fieldset class="legend"><legend>Methods{note}</legend>{boxes}</fieldset>'


def _headline(content: Content) -> str:
    return (
        '<section id="headline"><h2>In short</h2>'
        + "".join(f"<p>{escape(sentence)}</p>" for sentence in content["headline"])
        + "</section>"
    )


def _section(section: dict[str, Any], content: Content) -> str:
    charts = "".join(
        f'<figure data-chart="{escape(chart["id"])}" class="{escape(chart["kind"])}">'
        f'<figcaption>{escape(chart["title"])}</figcaption><div class="plot"></div></figure>'
        for chart in section["charts"]
    )
    note = (
        '<p class="note">Lines are means over the finished runs, bands one standard deviation. Thin lines are runs '
        "apart: open circles unfinished ones, crosses those that diverged.</p>"
    )
    words = note if any(chart["kind"] == "lines" for chart in section["charts"]) else ""
    places = {group["name"]: group["place"] for group in content["groups"]}
    tables = "".join(_table(table, places) for table in section["tables"])
    return (
        f'<section id="{section["id"]}"><h2>{escape(section["title"])}</h2>'
        f'{words}<div class="charts">{charts}</div>{tables}</section>'
    )


def _table(table: dict[str, Any], places: dict[str, str]) -> str:
    head = "".join(
        f'<th scope="col" data-kind="{column["kind"]}"><button type="button">{escape(column["title"])}</button></th>'
        for column in table["columns"]
    )
    rows = "".join(_row(row, places) for row in table["rows"])
    title = escape(table["title"])
    return (
        f'<div class="table" id="table-{table["id"]}"><div class="tools">'
        f'<label>Filter <input type="search" aria-controls="table-{table["id"]}"></label>'
        f'<button type="button" class="csv">CSV</button><span class="count" role="status"></span></div>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table>'
        f"<caption><span><strong>{title}.</strong> {escape(table['note'])}</span></caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></div>"
    )


def _row(row: list[dict[str, Any]], places: dict[str, str]) -> str:
    named = next((cell["group"] for cell in row if "group" in cell), "")
    cells = [_cell(cell, first=index == 0) for index, cell in enumerate(row)]
    return f'<tr data-place="{escape(places.get(named, ""))}">{"".join(cells)}</tr>'


def _cell(cell: dict[str, Any], *, first: bool) -> str:
    text = escape(cell["text"])
    if "href" in cell:
        text = f'<a href="{escape(cell["href"])}">{text}</a>'
    numbers = "".join(
        f' data-{name}="{"" if cell[name] is None else repr(cell[name])}"'
        for name in ("value", "sd", "n")
        if name in cell
    )
    kind = ' class="number"' if "value" in cell else ""
    return f'<th scope="row"{numbers}{kind}>{text}</th>' if first else f"<td{numbers}{kind}>{text}</td>"


def _missing(content: Content) -> str:
    if not content["missing"]:
        return ""
    items = "".join(
        f"<li>{escape(each['what'])} ({escape(each['who'])}): <code>{escape(each['command'])}</code></li>"
        for each in content["missing"]
    )
    return f'<section id="missing"><h2>Not measured</h2><ul>{items}</ul></section>'


def _problems(content: Content) -> str:
    if not content["problems"]:
        return ""
    items = "".join(f"<li>{escape(words)}</li>" for words in content["problems"])
    return f'<section id="problems"><h2>Left out</h2><ul>{items}</ul></section>'
