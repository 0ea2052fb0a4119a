"""Links of a Markdown text, outside of its code."""

from __future__ import annotations

import re
from collections.abc import Callable

LINK = re.compile(r"\]\((?P<target>(?!https?://|mailto:)[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")
FENCE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)[ ]*$", re.DOTALL | re.MULTILINE)


def outside_code(text: str, change: Callable[[str], str]) -> str:
    r"""The text with everything changed that is not in a fenced block.

    >>> print(outside_code("a\n```\na\n```\n", str.upper))
    A
    ```
    a
    ```
    <BLANKLINE>
    """
    pieces, start = [], 0
    for block in FENCE.finditer(text):
        pieces += [change(text[start : block.start()]), block[0]]
        start = block.end()
    return "".join([*pieces, change(text[start:])])


def turn(text: str, turned: Callable[[str, str], str]) -> str:
    """The text with each link within the repository turned; ``turned`` gets a path and an anchor, either may be empty.

    >>> turn("[a](b.md#c)", lambda target, anchor: f"d/{target}{anchor}")
    '[a](d/b.md#c)'
    """
    return outside_code(
        text, lambda part: LINK.sub(lambda link: f"]({turned(link['target'], link['anchor'] or '')})", part)
    )
