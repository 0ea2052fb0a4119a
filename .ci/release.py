"""Whether this may be published under a tag, or what has to be done first.

python .ci/release.py v0.1.0
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def objections(tag: str, root: Path = ROOT) -> list[str]:
    """What has to be done first; nothing, if the release may go out."""
    source = (root / "lesam" / "__init__.py").read_text()
    version = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)[1]  # type: ignore[index]
    urls = tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"]
    dated = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag!r}, lesam.__version__ {version!r}: tag v{version}, or change lesam/__init__.py")
    found += [f"[project.urls] of pyproject.toml: fill in {name}" for name, url in urls.items() if "example.org" in url]
    if not re.search(dated, (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        found.append(f"CHANGELOG.md has no dated section: ## [{version}] - YYYY-MM-DD")
    if f"\nversion: {version}\n" not in (root / "CITATION.cff").read_text():
        found.append(f"CITATION.cff names another version than {version}")
    return found


if __name__ == "__main__":
    sys.exit("\n".join(objections(sys.argv[1])) or None)
