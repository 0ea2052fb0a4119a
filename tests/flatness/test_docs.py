"""The examples of docs/flatness.md run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "flatness.md"


@pytest.mark.skipif(not PAGE.exists(), reason="documents are not part of an installed package")
def test_examples_run_in_order() -> None:
    pytest.importorskip("cyclopts", reason="the last examples are of the lab, which is not installed")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 5
    scope: dict[str, object] = {"__name__": "page"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{PAGE.name}, example {number}", "exec"), scope)
