"""The page in a real browser: nothing fails, nothing is asked of a network, and what can be pressed does what it says.

Skipped where Playwright or Chromium is missing; ``LESAM_CHROMIUM`` names the program where it is not on the path.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lesam.lab.cli import main
from tests.lab.report.page.folders import finished
from tests.lab.running import smoke

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = os.environ.get("LESAM_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
EVIL = "<script>alert(1)</script>"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; LESAM_CHROMIUM may name one")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    for method, accuracy in (("sgd", 0.5), ("sam", 0.7), ("lesam", 0.6)):
        for seed in (0, 1):
            config = replace(smoke("digits", method=method), seed=seed)
            finished(config, folder / "runs" / f"{method}{seed}", [accuracy / 2, accuracy + seed / 100])
    config = smoke("digits", method="sam")
    config = replace(config, data=replace(config.data, options={**config.data.options, "note": EVIL}))
    finished(config, folder / "runs" / "evil", [0.1, 0.2])
    assert main(["report", str(folder / "runs"), "-o", str(folder / "report.html")]) == 0
    return folder / "report.html"


@pytest.fixture
def opened(file: Path) -> Iterator[Any]:
    """The page in a fresh window, with everything that went wrong and every request that it made."""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 400, "height": 800}, color_scheme="dark").new_page()
        page.wrong, page.asked = [], []
        page.on("console", lambda message: page.wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("dialog", lambda dialog: page.wrong.append(dialog.message))
        page.on("request", lambda request: page.asked.append(request.url))
        page.set_default_timeout(120_000)
        page.goto(file.as_uri())
        page.locator("figure[data-chart=test_accuracy]").scroll_into_view_if_needed()
        page.wait_for_selector("figure[data-chart=test_accuracy] .main-svg")
        yield page
        browser.close()


def column(page: Any, number: int) -> list[str]:
    rows: list[str] = page.eval_on_selector_all(
        "#table-summary tbody tr", f"rows => rows.map(row => row.cells[{number}].dataset.value)"
    )
    return rows


def test_the_page_works_in_a_browser(opened: Any, file: Path) -> None:
    heading = opened.locator("#table-summary thead th").nth(3)
    heading.locator("button").focus()
    opened.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert column(opened, 3) == sorted(column(opened, 3), key=float, reverse=True)
    drawn = "document.querySelector('figure[data-chart=test_accuracy] .plot')"
    assert opened.evaluate(f"{drawn}.layout.xaxis.title.text") == "epoch"
    opened.check("input[name=axis][value=passes]")
    opened.wait_for_function(f"{drawn}.layout.xaxis.title.text === 'forward-backward passes'")
    assert opened.evaluate(f"{drawn}.data.at(-1).x") == [20, 40]
    opened.fill("#table-summary input[type=search]", "sgd")
    assert opened.inner_text("#table-summary .count") == "1 of 4 rows"
    with opened.expect_download() as download:
        opened.click("#table-summary .csv")
    assert "50.5" in Path(download.value.path()).read_text()
    assert opened.evaluate("document.documentElement.scrollWidth") == 400
    assert EVIL in opened.inner_text(".legend")
    assert any(
        EVIL.replace("<", "&lt;").replace(">", "&gt;") in text
        for text in opened.evaluate(f"{drawn}.data.flatMap(trace => trace.text ?? [])")
    )
    assert opened.wrong == []
    assert opened.asked == [file.as_uri()]
