"""docs/training-set-ups.md is one page in the repository and one page for each set-up on the site."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from links import FENCE, outside_code, turn
from markdown.extensions.toc import slugify

PAGE = "training-set-ups.md"


@dataclass(frozen=True)
class Part:
    """One set-up: its title, the page it becomes, and its text with headings one level up."""

    title: str
    page: str
    text: str
    anchors: frozenset[str]


def parts(docs: Path) -> list[Part]:
    """The set-ups in the order of the document; a later one of an earlier one's title keeps its own page."""
    text = (docs / PAGE).read_text()
    starts = _headings(text)
    ends = [*starts[1:], len(text)]
    found: list[Part] = []
    taken: set[str] = set()
    for start, end in zip(starts, ends, strict=True):
        section = text[start:end]
        title = section.splitlines()[0].removeprefix("## ")
        anchor = _unused(slugify(title, "-"), taken)
        below = {slugify(line, "-") for line in re.findall(r"^### (.+)$", FENCE.sub("", section), re.MULTILINE)}
        found.append(Part(title, f"set-ups/{anchor}.md", _one_level_up(section), frozenset({anchor, *below})))
    return found


def front(docs: Path) -> str:
    """What comes before the first set-up: the table of all."""
    text = (docs / PAGE).read_text()
    return text[: _headings(text)[0]]


def homes(docs: Path) -> dict[str, str]:
    """On which page an anchor of the document is; the first of two."""
    return {anchor: part.page for part in reversed(parts(docs)) for anchor in part.anchors}


def _headings(text: str) -> list[int]:
    fences = [match.span() for match in FENCE.finditer(text)]
    found = [match.start() for match in re.finditer(r"^## ", text, re.MULTILINE)]
    return [start for start in found if not any(a <= start < b for a, b in fences)]


def _one_level_up(section: str) -> str:
    text = outside_code(section, lambda part: re.sub(r"^##", "#", part, flags=re.MULTILINE))
    # It lies one folder deeper than the document; a link to a heading alone is one to the document.
    return turn(text, lambda target, anchor: f"../{target or PAGE}{anchor}")


def _unused(anchor: str, taken: set[str]) -> str:
    name, number = anchor, 1
    while name in taken:
        name, number = f"{anchor}-{number}", number + 1
    taken.add(name)
    return name
