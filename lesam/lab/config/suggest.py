"""Unknown names become errors that suggest the nearest known one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MANY = 20
"""Of more known names than this, only similar ones are shown."""


def unknown(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that is not among the known ones.

    >>> print(unknown("method", "lesma", ["sam", "lesam"]))
    unknown method 'lesma'; did you mean 'lesam'? Known: lesam, sam
    """
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=5, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    if len(choices) > MANY and near:
        return ValueError(f"unknown {kind} {name!r}; {hint}Similar: {', '.join(near)}")
    return ValueError(f"unknown {kind} {name!r}; {hint}Known: {', '.join(choices)}")
