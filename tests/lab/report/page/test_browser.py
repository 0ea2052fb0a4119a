"""The page in a real browser: nothing fails, nothing is asked of a network, and what can be pressed does what it says.

Skipped where Chromium is missing; ``LESAM_CHROMIUM`` names the program where it is not on the path. Pictures of what
was seen lie in ``build/screenshots`` afterwards.
"""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lesam.lab.cli import main
from lesam.lab.flatness.landscape import LandscapeSettings, measure_landscape
from lesam.lab.report.live.folder import WatchedFolder
from lesam.lab.report.live.server import PageServer
from lesam.lab.runs.folder import find_runs
from tests.lab.report.page.folders import finished
from tests.lab.running import smoke, trained
from tests.needs import program

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = program("chromium", "LESAM_CHROMIUM")
EVIL = "<script>alert(1)</script>"
PICTURES = Path(__file__).parents[4] / "build" / "screenshots"
ACCURACY = "document.querySelector('figure[data-chart=test_accuracy] .plot')"
# Surfaces are drawn by WebGL, here without a graphics card.
SWITCHES = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; LESAM_CHROMIUM may name one")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods with two seeds, two of them with a landscape, and a run with an evil name."""
    folder = tmp_path_factory.mktemp("page") / "runs"
    for method, accuracy in (("sgd", 0.5), ("sam", 0.7), ("lesam", 0.6)):
        for seed in (0, 1):
            config = replace(smoke("digits", method=method), seed=seed)
            finished(config, folder / f"{method}{seed}", [accuracy / 2, accuracy + seed / 100])
    finished(smoke("digits", "optimizer.rho_max=0.5", method="lesam"), folder / "capped", [0.1, 0.2])
    config = smoke("digits", method="sam")
    config = replace(config, data=replace(config.data, options={**config.data.options, "note": EVIL}))
    finished(config, folder / "evil", [0.1, 0.2])
    for method in ("asam", "gsam"):
        run = trained(smoke("digits", method=method), folder)
        measure_landscape(run, settings=LandscapeSettings(points=5, samples=50, batch_size=50))
    return folder


@pytest.fixture(scope="module")
def file(runs: Path) -> Path:
    target = runs.parent / "report.html"
    assert main(["report", str(runs), "-o", str(target)]) == 0
    return target


@dataclasses.dataclass
class Window:
    """A page, everything that went wrong on it, and every address that it asked for."""

    page: Any
    wrong: list[str] = dataclasses.field(default_factory=list)
    asked: list[str] = dataclasses.field(default_factory=list)

    @classmethod
    def open(cls, browser: Any, address: str, *, width: int, scheme: str) -> Window:
        page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
        window = cls(page)
        page.on("console", lambda message: window.wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: window.wrong.append(str(error)))
        page.on("dialog", lambda dialog: window.wrong.append(dialog.message))
        page.on("request", lambda request: window.asked.append(request.url))
        page.set_default_timeout(120_000)
        page.goto(address)
        window.come_into_view("test_accuracy", ".main-svg")
        return window

    def come_into_view(self, chart: str, drawn: str) -> None:
        self.page.locator(f"figure[data-chart={chart}]").scroll_into_view_if_needed()
        self.page.wait_for_selector(f"figure[data-chart={chart}] {drawn}")

    def until(self, expression: str) -> None:
        """Wait for something to become true; the page's policy forbids Playwright's own way, which is `eval`."""
        for _ in range(600):
            if self.page.evaluate(expression):
                return
            self.page.wait_for_timeout(100)
        raise TimeoutError(expression)

    def picture(self, name: str, **options: Any) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", **options)

    def column(self, number: int) -> list[str]:
        rows: list[str] = self.page.eval_on_selector_all(
            "#table-summary tbody tr", f"rows => rows.map(row => row.cells[{number}].dataset.value)"
        )
        return rows


@pytest.fixture(params=[(1300, "light"), (400, "dark")], ids=["wide and light", "narrow and dark"])
def window(request: pytest.FixtureRequest, browser: Any, file: Path) -> Iterator[Window]:
    width, scheme = request.param
    window = Window.open(browser, file.as_uri(), width=width, scheme=scheme)
    yield window
    window.page.context.close()
    assert window.wrong == []
    assert [address for address in window.asked if not address.startswith("blob:")] == [file.as_uri()]


def test_tables_sort_filter_and_download(window: Window) -> None:
    page = window.page
    heading = page.locator("#table-summary thead th").nth(3)
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert window.column(3) == sorted(window.column(3), key=float, reverse=True)
    assert window.column(3)[0] == "70.5"  # the mean of SAM's two seeds
    page.fill("#table-summary input[type=search]", "sgd")
    assert re.fullmatch(r"1 of \d+ rows", page.inner_text("#table-summary .count"))
    with page.expect_download() as download:
        page.click("#table-summary .csv")
    (_, row) = Path(download.value.path()).read_text().splitlines()
    assert "50.5" in row
    with page.expect_download() as download:
        page.click("#json")
    assert {group["name"] for group in json.loads(Path(download.value.path()).read_text())["groups"]} >= {"SGD", "SAM"}


def test_the_axis_switches_and_names_are_shown_as_they_are_written(window: Window) -> None:
    page = window.page
    assert page.evaluate(f"{ACCURACY}.layout.xaxis.title.text") == "epoch"
    page.check("input[name=axis][value=passes]")
    window.until(f"{ACCURACY}.layout.xaxis.title.text === 'forward-backward passes'")
    shown = page.evaluate(f"{ACCURACY}.data.filter(trace => trace.text).map(trace => trace.x)")
    assert [20, 40] in shown  # ten steps of two passes in each epoch
    assert EVIL in page.inner_text(".legend")
    smuggled = "() => { const script = document.createElement('script'); script.textContent = 'window.ran = 1'; "
    assert page.evaluate(smuggled + "document.body.append(script); return window.ran ?? 'refused' }") == "refused"
    assert "Content Security Policy" in window.wrong.pop()
    texts = page.evaluate(f"{ACCURACY}.data.flatMap(trace => trace.text ?? [])")
    assert any(EVIL.replace("<", "&lt;").replace(">", "&gt;") in text for text in texts)


def test_the_page_has_the_width_of_its_window_and_the_colours_of_its_scheme(window: Window) -> None:
    page = window.page
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    brightness = "Math.max(...getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number))"
    assert (page.evaluate(brightness) < 100) == (width == 400)  # the narrow one is opened in the dark
    window.picture(f"report-{width}", full_page=True)


def test_surfaces_turn_together(window: Window) -> None:
    window.come_into_view("landscape", "canvas")
    page = window.page
    planes = "[...document.querySelector('figure[data-chart=landscape] .planes').children]"
    window.until(f"{planes}.length === 2 && {planes}.every(plane => plane._fullLayout?.scene?._scene?.camera)")
    cameras = f"{planes}.map(plane => JSON.stringify(plane._fullLayout.scene.camera.eye))"
    before = page.evaluate(cameras)
    box = page.locator("figure[data-chart=landscape] .planes > div").first.bounding_box()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.5 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.6 * box["height"], steps=5)
    page.mouse.up()
    window.until(f"{cameras}.every((eye, place) => eye !== {json.dumps(before)}[place])")
    assert len(set(page.evaluate(cameras))) == 1
    window.picture(f"landscapes-{page.viewport_size['width']}")


def test_words_come_behind_numbers_in_either_order(window: Window) -> None:
    page = window.page
    heads = page.eval_on_selector_all("#table-configuration thead th", "heads => heads.map(head => head.textContent)")
    column = next(place for place, head in enumerate(heads) if "rho_max" in head)
    cells = f"rows => rows.map(row => row.cells[{column}].textContent)"
    for _ in range(2):
        page.locator("#table-configuration thead th").nth(column).locator("button").click()
        found = page.eval_on_selector_all("#table-configuration tbody tr", cells)
        kinds = [2 if text == "" else 1 if text == "None" else 0 for text in found]
        assert {0, 1} <= set(kinds)
        assert kinds == sorted(kinds)


def test_a_symbol_stays_when_another_method_is_hidden(window: Window) -> None:
    page = window.page
    chart = page.evaluate("[...document.querySelectorAll('figure[data-chart]')][0].dataset.chart")
    plot = f"document.querySelector('figure[data-chart={chart}] .plot')"
    window.come_into_view(chart, ".main-svg")
    pairs = f"{plot}.data.filter(trace => trace.marker).map(trace => [trace.text[0], trace.marker.symbol])"
    symbols = f"Object.fromEntries({pairs})"
    before = page.evaluate(symbols)
    page.uncheck("input.method[value=SGD]")
    window.until(f"!('SGD' in {symbols})")
    assert page.evaluate(symbols) == {name: symbol for name, symbol in before.items() if name != "SGD"}


def test_bands_of_shares_stay_between_0_and_100(window: Window) -> None:
    heights = window.page.evaluate(f"{ACCURACY}.data.filter(trace => trace.fill).flatMap(trace => trace.y)")
    assert heights
    assert 0 <= min(heights) <= max(heights) <= 100


def test_print_is_light_and_complete(browser: Any, file: Path) -> None:
    window = Window.open(browser, file.as_uri(), width=720, scheme="dark")  # a page of A4 without its margins
    window.page.emulate_media(media="print")
    assert window.page.evaluate("document.querySelector('#table-summary table').scrollWidth") <= 720
    PICTURES.mkdir(parents=True, exist_ok=True)
    printed = PICTURES / "report.pdf"
    window.page.pdf(path=printed)
    missing = "[...document.querySelectorAll('figure[data-chart]')].filter(figure => !figure.drawn).length"
    assert window.page.evaluate(missing) == 0  # also what had not come into view
    assert printed.read_bytes().startswith(b"%PDF")
    assert window.wrong == []
    window.page.context.close()


def attacked(run: Path, *, steps: int, name: str, batch_size: int = 1) -> None:
    attack = {"norm": "linf", "eps": 1 / 255, "step_size": 1 / 255, "steps": steps, "restarts": 1, "keep": "last"}
    settings = {"attack": attack, "split": "test", "samples": 9, "batch_size": batch_size, "seed": 0}
    record = {"settings": {**settings, "checkpoint": {"epoch": 2}}, "result": {"clean": 0.5, "attacked": 0.1}}
    (run / "attacks").mkdir(exist_ok=True)
    (run / "attacks" / name).write_text(json.dumps(record))


def test_a_watched_folder_is_followed_without_losing_zoom_or_selection(browser: Any, runs: Path) -> None:
    with PageServer(WatchedFolder(runs)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        window = Window.open(browser, server.url, width=1300, scheme="light")
        page = window.page
        page.evaluate(f"Plotly.relayout({ACCURACY}, {{'xaxis.range': [0.5, 1.5]}})")
        page.fill("#table-runs input[type=search]", "seed0")
        page.uncheck("input.method[value=SGD]")
        drawn = f"{ACCURACY}.data.filter(trace => trace.text).map(trace => trace.x.length)"
        assert max(page.evaluate(drawn)) == 2
        (run,) = (run for run in find_runs([runs]) if run.path.name == "lesam0")
        row = run.metrics()[-1]

        def another_epoch(number: int) -> None:
            run.append({**row, "epoch": row["epoch"] + number, "step": row["step"] + 10 * number}, [])
            window.until(f"Math.max(...{drawn}) === {2 + number}")

        scrolled = "document.querySelector('#table-runs .scroll').scrollLeft"
        page.evaluate(f"{scrolled} = 20")
        assert page.evaluate(scrolled) == 20
        page.focus("input.method[value=ASAM]")
        another_epoch(1)
        assert page.evaluate("document.activeElement.value") == "ASAM"
        assert page.evaluate(scrolled) == 20
        page.locator("#table-summary thead button").nth(3).focus()
        another_epoch(2)
        assert page.evaluate("document.activeElement.textContent") == "test accuracy (%)"
        assert page.evaluate(f"{ACCURACY}.layout.xaxis.range") == [0.5, 1.5]
        assert page.input_value("#table-runs input[type=search]") == "seed0"
        assert not page.is_checked("input.method[value=SGD]")
        finished(
            smoke("digits", "optimizer.lr=0.5", method="sgd"), runs / "rival", [0.5]
        )  # SGD needs a longer name now
        rivals = "document.querySelectorAll(`input.method[value^='SGD (']`)"
        window.until(f"{rivals}.length === 2")
        boxes = page.evaluate(f"[...{rivals}].map(box => box.checked)")
        assert sorted(boxes) == [False, True]  # the one that was hidden still is
        caption = "document.querySelector('#attacks figure:last-of-type figcaption')?.textContent"
        attacked(runs / "sam0", steps=10, name="b.json")
        window.until(f"{caption}?.includes('10 steps')")
        attacked(runs / "sam0", steps=20, name="a.json")
        window.until("document.querySelectorAll('#attacks figure').length === 2")
        figures = "[...document.querySelectorAll('#attacks figure')]"
        page.evaluate(f"{figures}.forEach(figure => figure.scrollIntoView())")
        attacked(runs / "sam0", steps=10, name="c.json", batch_size=2)  # titles must tell the two apart
        window.until(f"{figures}.length === 3")
        captions = page.evaluate(f"{figures}.map(figure => figure.querySelector('figcaption').textContent)")
        assert len(set(captions)) == 3
        assert sum("batch_size=" in words for words in captions) == 2
        assert window.wrong == []
        assert {address.split("/")[2] for address in window.asked} == {f"127.0.0.1:{server.server_port}"}
        page.context.close()
        server.shutdown()
        thread.join()
