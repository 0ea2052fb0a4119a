"""The site of `make docs`: complete, readable without a network, and not built at all where something is broken."""

from __future__ import annotations

import doctest
import html
import os
import re
import runpy
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

import lesam
import lesam.flatness
import lesam.schedules
from lesam.lab.cli import COMMANDS
from tests import needs

ROOT = Path(__file__).parents[1]
pytest.importorskip("mkdocs", reason="the site is made with the extra `docs`")
pytestmark = [
    pytest.mark.skipif(not (ROOT / "website").exists(), reason="the site is not part of an installed package"),
    pytest.mark.xdist_group("website"),  # one build for all tests
]


def test_the_tests_of_a_group_run_in_one_process(request: pytest.FixtureRequest):
    """Or the site is built in each, and tests that start processes fight over the cores."""
    assert "PYTEST_XDIST_WORKER" not in os.environ or request.node.nodeid.endswith("@website")


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """What `make docs` runs, with another project and another target."""
    command = re.search(r"python -m (mkdocs build .+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert command is not None
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    whole = [sys.executable, "-m", *command[1].split(), "--site-dir", str(site)]
    return subprocess.run(whole, cwd=root, env=environment, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize(
    "file", ["website/links.py", "website/formulas.py", "website/docstrings.py", "benchmarks/tables.py"]
)
def test_examples_in_docstrings(file: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "website"))
    names = runpy.run_path(str(ROOT / file))
    finder = doctest.DocTestFinder()
    functions = [value for value in names.values() if isinstance(value, types.FunctionType)]
    cases = [case for function in functions for case in finder.find(function, globs=names) if case.examples]
    results = [doctest.DocTestRunner().run(case) for case in cases]
    assert results
    assert sum(result.failed for result in results) == 0


# ---------------------------------------------------------------------- the site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def pages(site: Path) -> dict[str, str]:
    return {str(page.relative_to(site)): page.read_text() for page in site.rglob("*.html")}


def test_every_document_and_every_public_name_is_there(site: Path):
    found = pages(site)
    made = {name for name in found if not name.startswith(("set-ups/", "reference/", "tutorials/"))}
    documents = {str(page.relative_to(ROOT / "docs").with_suffix(".html")) for page in (ROOT / "docs").rglob("*.md")}
    named = {name.replace("README.html", "index.html") for name in documents} | {"changelog.html", "contributing.html"}
    assert made == named | {"404.html"}
    public = [f"lesam.{name}" for name in lesam.__all__ if name not in ("schedules", "__version__")]
    public += [f"lesam.flatness.{name}" for name in lesam.flatness.__all__]
    public += [f"lesam.schedules.{name}" for name in lesam.schedules.__all__]
    reference = "".join(text for name, text in found.items() if name.startswith("reference/"))
    assert [name for name in public if f'id="{name}"' not in reference] == []


def test_every_command_is_there(site: Path):
    page = pages(site)["reference/commands.html"]
    assert [name for name in COMMANDS if f'id="lesam-{name}"' not in page] == []


def test_each_training_set_up_has_a_page(site: Path):
    text = re.sub(
        r"^```.*?^```", "", (ROOT / "docs" / "training-set-ups.md").read_text(), flags=re.DOTALL | re.MULTILINE
    )
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    found = [page for page in pages(site) if page.startswith("set-ups/")]
    assert len(found) == len(titles) > 10


def test_tutorials_were_run_and_end_with_pictures(site: Path):
    for script in (ROOT / "docs" / "tutorials").glob("*.py"):
        page = (site / "tutorials" / f"{script.stem}.html").read_text()
        pictures = re.findall(rf'<img[^>]*src="({script.stem}-\d+\.png)"', page)
        assert pictures, script
        assert all((site / "tutorials" / name).stat().st_size > 5_000 for name in pictures)
        assert 'class="text output' in page or "output highlight" in page, "nothing printed"


def test_nothing_is_fetched_from_elsewhere(site: Path):
    """Links may lead away; what a browser loads by itself may not."""
    loaded = r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?([^\"'\s>]+)|<link\b[^>]*\bhref=[\"']?([^\"'\s>]+)"
    for name, text in pages(site).items():
        away = [url for pair in re.findall(loaded, text) for url in pair if re.match(r"(https?:)?//", url)]
        assert away == [], name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", sheet.read_text()), sheet


def test_formulas_are_elements_a_browser_draws(site: Path):
    text = pages(site)["equations.html"]
    shown = html.unescape(re.sub(r"<(script|style|pre|code|math)\b.*?</\1>", "", text, flags=re.DOTALL))
    assert text.count("<math") > 80
    assert "$" not in shown
    assert "\\(" not in shown
    assert "<annotation" not in text


def test_the_index_of_the_search_can_be_read_without_a_server(site: Path):
    index = (site / "search" / "search_index.js").read_text()
    assert index.startswith("var __index = ")
    assert "LossBudget" in index
    assert "iframe-worker" in pages(site)["index.html"]


CHROMIUM = needs.program("chromium", "LESAM_CHROMIUM")


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; LESAM_CHROMIUM may name one")
def test_a_browser_opens_files_searches_and_asks_nobody(site: Path):
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        wrong, asked = [], []
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.set_default_timeout(120_000)
        page.goto((site / "set-ups" / "ddp.html").as_uri())
        page.click("input[name=query]")
        page.keyboard.type("loss budget")
        page.wait_for_selector(".md-search-result__item a")
        page.goto((site / "equations.html").as_uri())
        narrow = browser.new_page(viewport={"width": 400, "height": 800})
        for name in pages(site):
            narrow.goto((site / name).as_uri())
            assert narrow.evaluate("document.documentElement.scrollWidth") <= 400, name
        dark = browser.new_page(color_scheme="dark")
        dark.goto((site / "index.html").as_uri())
        assert dark.evaluate("document.body.dataset.mdColorScheme") == "slate"
        browser.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))] == []


# ---------------------------------------------------------------------- what is refused


MODULES = [
    "optim", "schedules", "flatness", "flatness.figures", "integrations", "integrations.lightning",
    "lab", "lab.training", "lab.training.loop", "lab.recipes", "lab.config",
]  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A package and documents of a few lines each, with this project's own way of making a site."""
    shutil.copytree(ROOT / "website", tmp_path / "website", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in re.findall(r"- (?:[\w ]+: )?([\w/-]+\.md)", (ROOT / "website" / "mkdocs.yml").read_text()):
        write(tmp_path / "docs" / name, "# A page\n\nOf one line.\n")
    shutil.rmtree(tmp_path / "docs" / "tutorials")
    for name in re.findall(r"tutorials/(\w+)\.md", (ROOT / "website" / "mkdocs.yml").read_text()):
        write(tmp_path / "docs" / "tutorials" / f"{name}.py", "# %% [markdown]\n# # A tutorial\n\n# %%\nprint(2)\n")
    for name in ("changelog", "contributing"):
        (tmp_path / "docs" / f"{name}.md").unlink()
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/moving-from-other-packages.md"):
        write(tmp_path / name, "# A page\n\nA formula, $x^2$.\n")
    write(tmp_path / "docs" / "methods" / "README.md", "# Methods\n")
    write(tmp_path / "docs" / "training-set-ups.md", "# Set-ups\n\n[One](#one)\n\n## One\n\nText.\n")
    write(tmp_path / "lesam" / "__init__.py", '"""A package."""\n\nfrom lesam.optim import train\n')
    for name in MODULES:
        text = '"""A module."""\n\n\ndef train():\n    """A function, :math:`x^2`."""\n'
        write(tmp_path / "lesam" / Path(*name.split(".")) / "__init__.py", text)
    app = "class make_app:\n    def generate_docs(self, output_format):\n        return '# lesam\\n'\n"
    write(tmp_path / "lesam" / "lab" / "cli.py", app)
    return tmp_path


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_sound_project_is_built(project: Path):
    done = build(project, project / "site")
    assert done.returncode == 0, done.stderr
    assert "<msup" in (project / "site" / "reference" / "schedules.html").read_text()
    assert ">2\n" in (project / "site" / "tutorials" / "first_run.html").read_text()


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("docs/data.md", "# Data\n\n[gone](nowhere.md)\n", "nowhere.md"),
        ("docs/data.md", "# Data\n\n[gone](demo.md#nowhere)\n", "#nowhere"),
        ("docs/data.md", "# Data\n\n[gone](../examples/nowhere.py)\n", "examples/nowhere.py, which does not exist"),
        ("docs/data.md", "# Data\n\nUnknown: $\\nosuchcommand x$.\n", "'\\\\nosuchcommand' is not known"),
        ("docs/data.md", "# Data\n\nNot closed: $$ \\frac{1}{2}\n", "a formula was not recognised"),
        ("docs/forgotten.md", "# Not in the menu\n", "forgotten.md"),
        ("docs/tutorials/first_run.py", "# %%\nraise SystemError('of the tutorial')\n", "of the tutorial"),
        ("lesam/schedules/__init__.py", '"""A module."""\n\n\ndef train():\n    pass\n', "lesam.schedules.train"),
        (
            "lesam/schedules/__init__.py",
            '"""A module."""\n\n\nclass Part:\n    """A class."""\n\n    def method(self):\n        pass\n',
            "lesam.schedules.Part.method",
        ),
    ],
    ids=["file", "anchor", "repository", "unknown command", "not closed", "menu", "tutorial", "function", "method"],
)  # fmt: skip
def test_what_is_broken_fails_the_build(project: Path, file: str, text: str, said: str):
    write(project / file, text)
    done = build(project, project / "site")
    assert done.returncode != 0
    assert said in done.stderr
