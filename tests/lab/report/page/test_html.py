"""The page itself: self-contained, readable without its script, and deaf to what run folders are called."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urljoin, urlsplit

import pytest

from lesam.lab.cli import main
from lesam.lab.report.page.content import content
from lesam.lab.runs.folder import find_runs
from tests.lab.report.page.folders import finished
from tests.lab.running import smoke

VOID = {"meta", "input", "line", "link", "br", "img"}
EVIL = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Elements with their attributes and text, and whether every element is closed where it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.open: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element: tuple[str, dict[str, str | None], list[str]] = (tag, dict(attrs), [])
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for _, _, text in self.open:
            text.append(data)

    def all(self, tag: str, **wanted: str) -> list[tuple[dict[str, str | None], str]]:
        return [
            (attributes, "".join(text))
            for name, attributes, text in self.elements
            if name == tag and all(attributes.get(key.strip("_")) == value for key, value in wanted.items())
        ]


@pytest.fixture(scope="module")
def file(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("page") / "report.html"
    assert main(["report", str(runs), "-o", str(target)]) == 0
    return target


@pytest.fixture(scope="module")
def page(file: Path) -> Page:
    return Page(file.read_text())


def test_every_element_is_closed_and_ids_are_unique(page: Page) -> None:
    assert page.open == []
    ids = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_the_page_needs_nothing_else(page: Page) -> None:
    for tag, attributes, _ in page.elements:
        assert "src" not in attributes, tag
        target = attributes.get("href") or ""
        assert not re.match(r"[a-z]+:|//", target), target
        assert not any(name.startswith("on") for name in attributes), tag
    assert not page.all("link")


def test_the_policy_names_the_scripts_by_their_hashes_and_nothing_else(page: Page) -> None:
    ((meta, _),) = page.all("meta", http_equiv="Content-Security-Policy") or [
        each for each in page.all("meta") if each[0].get("http-equiv") == "Content-Security-Policy"
    ]
    policy = dict(part.strip().split(" ", 1) for part in (meta["content"] or "").split(";"))
    executed = [text for attributes, text in page.all("script") if "type" not in attributes]
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in executed}
    assert len(executed) == 2
    assert set(policy["script-src"].split()) == hashes
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'none'"


def test_the_tables_hold_the_numbers_of_the_data(page: Page) -> None:
    ((_, text),) = page.all("script", id="data")
    data = json.loads(text)
    cells = [text for tag, _, parts in page.elements if tag in ("td", "th") for text in ["".join(parts)]]
    for table in (table for section in data["sections"] for table in section["tables"]):
        for row in table["rows"]:
            assert all(cell["text"] in cells for cell in row)
    assert len(page.all("table")) == len(page.all("caption")) == len([t for s in data["sections"] for t in s["tables"]])
    assert page.all("figure", **{"data-chart": "test_accuracy"})


def test_tables_are_for_keyboards_and_screen_readers(page: Page) -> None:
    heads = page.all("th", scope="col")
    assert heads
    assert len(page.all("th", scope="row")) == sum("data-place" in at for at, _ in page.all("tr"))
    assert all(attributes["tabindex"] == "0" for attributes, _ in page.all("div", role="region"))
    assert len(page.all("button")) >= len(heads)
    assert page.all("html", lang="en")


def test_run_folders_are_linked_from_where_the_page_lies(page: Page, file: Path, runs: Path) -> None:
    folders = [path for path in runs.iterdir() if path.is_dir()]
    links = [(file.parent / str(attributes["href"])).resolve() for attributes, _ in page.all("a")]
    assert {folder.resolve() for folder in folders} <= set(links)


@pytest.mark.parametrize("name", ["a#b?c", "https:example.com", "javascript:alert(1)", "50 %41", "\udcff"])
def test_a_run_of_any_name_is_linked(name: str, tmp_path: Path) -> None:
    """As a browser reads the address: relative to the page, percent signs resolved, up to the question mark."""
    finished(smoke("digits", method="sam"), tmp_path / name, [0.5])
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "report.html")]) == 0
    page = Page((tmp_path / "report.html").read_text())
    (link,) = [str(attributes["href"]) for attributes, _ in page.all("a") if str(attributes["href"])[0] != "#"]
    address = urlsplit(urljoin("file:///page/report.html", link))
    assert unquote_to_bytes(address.path) == b"/page/" + os.fsencode(name) + b"/"
    assert (address.scheme, address.query, address.fragment) == ("file", "", "")


@pytest.mark.parametrize("where", ["recipe", "option", "folder", "command"])
def test_a_run_called_script_is_shown_and_not_executed(where: str, tmp_path: Path) -> None:
    config = smoke("digits", method="sam")
    if where == "recipe":
        config = replace(config, recipe=EVIL)
    if where == "option":
        finished(config, tmp_path / "runs" / "plain", [0.4])
        config = replace(config, data=replace(config.data, options={**config.data.options, "note": EVIL}))
    name = EVIL.replace("/", "") if where == "folder" else "run"
    run = finished(config, tmp_path / "runs" / name, [0.5])
    if where == "command":
        (run.path / "environment.json").write_text(json.dumps([{"command": EVIL, "commit": {"id": EVIL}}]))
    assert main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "report.html")]) == 0
    page = Page((tmp_path / "report.html").read_text())
    assert page.open == []
    scripts = page.all("script")
    assert len(scripts) == 3
    assert [attributes.get("type") for attributes, _ in scripts] == ["application/json", None, None]
    shown = "".join(text for tag, _, parts in page.elements if tag in ("td", "th", "h1") for text in parts)
    assert (EVIL.replace("/", "") if where == "folder" else EVIL) in shown
    assert EVIL.replace("/", "") in scripts[0][1].replace("\\u003c", "<").replace("/", "")


def test_nothing_readable_is_an_error_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs" / "bad").mkdir(parents=True)
    (tmp_path / "runs" / "bad" / "config.json").write_text("{")
    assert main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "report.html")]) == 2
    assert "config.json" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_the_record_is_json_without_anything_that_is_no_number(runs: Path) -> None:
    made: Any = content(find_runs([runs]), sources=[runs])
    assert json.loads(json.dumps(made, allow_nan=False)) == made
