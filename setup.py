"""The one thing pyproject.toml cannot say: the README with absolute links, as the package index shows it."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def readme() -> str:
    """README.md with links to files of the tag that is being released."""
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    version = re.search(r'^__version__ = "(.+)"$', (ROOT / "lesam" / "__init__.py").read_text(), re.MULTILINE)[1]

    def absolute(match: re.Match[str]) -> str:
        address = f"{source}/blob/v{version}/{match['file']}{'?raw=true' if match['picture'] else ''}"
        return f"{match['picture']}[{match['text']}]({address}{match['anchor'] or ''})"

    link = r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?!https?://|#)(?P<file>[^)#]+)(?P<anchor>#[^)]*)?\)"
    return re.sub(link, absolute, (ROOT / "README.md").read_text())


setup(long_description=readme(), long_description_content_type="text/markdown")
