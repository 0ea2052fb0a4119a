"""Every Python block of the documents runs as it stands, in a namespace and a folder of its own.

A block that cannot run is marked by a comment before it, ``<!-- not run: reason -->``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

ROOT = Path(__file__).parents[1]
# docs/flatness.md reads as one session: tests/flatness runs it from top to bottom
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
PAGES = [page for page in PAGES if page.exists() and page.name != "flatness.md"]
BLOCK = re.compile(r"(?P<mark><!-- not run: [^>]+ -->\s*\n)?```python\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)


def blocks() -> list[pytest.ParameterSet]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            if match["mark"] is None:
                line = text.count("\n", 0, match.start("code")) + 1
                found.append(pytest.param(page, line, match["code"], id=f"{page.relative_to(ROOT)}:{line}"))
    return found


@pytest.mark.parametrize(("page", "line", "code"), blocks())
def test_block_runs(page: Path, line: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    try:
        with torch.random.fork_rng():
            # blank lines before it make the line numbers of a traceback those of the page
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), {"__name__": "__main__"})
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def test_blocks_are_found():
    if not PAGES:
        pytest.skip("documents are not part of an installed package")
    assert len(blocks()) > 20


LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)[^)]*\)")


def test_the_index_and_the_readme_list_every_document():
    if not (ROOT / "docs").exists():
        pytest.skip("documents are not part of an installed package")
    pages = {page.resolve() for page in (ROOT / "docs").glob("*.md")} - {ROOT / "docs" / "README.md"}
    for index in (ROOT / "docs" / "README.md", ROOT / "README.md"):
        linked = {(index.parent / target).resolve() for target in LINK.findall(index.read_text())}
        assert pages <= linked, index
        assert all(target.exists() for target in linked), index


def test_every_example_is_named_in_the_table_of_training_set_ups():
    if not (ROOT / "examples").exists():
        pytest.skip("examples are not part of an installed package")
    page = (ROOT / "docs" / "training-set-ups.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"\(\.\./examples/(\w+\.py)\)", row)}
    assert named == {script.name for script in (ROOT / "examples").glob("*.py")}
