"""What the site has beyond docs/: mkdocs calls these functions while it builds.

The README is the first page, the changelog and the rules for contributors have one each, every training set-up of
docs/training-set-ups.md becomes a page of its own, tutorials are run and shown with their output, and the reference is
made from docstrings. Links are those of the repository; the ones that leave docs/ are turned here.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
import formulas
import links
import reference
import set_ups
import tutorials

ROOT = Path(__file__).parents[1]
#: files of the repository that are pages of the site
ELSEWHERE = {"README.md": "README.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Addresses, and the parts of the menu that follow from files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.copyright = f'MIT licence. <a href="{project["urls"]["Source"]}">Source</a>'
    docs = Path(config.docs_dir)
    menu: dict[str, list[Any]] = {
        "Training set-ups": [
            "training-set-ups.md",
            *({part.title: part.page} for part in set_ups.parts(docs)),
            "moving-from-other-packages.md",
        ],
        "Methods": ["methods/README.md", *(f"methods/{card.name}" for card in cards(docs))],
        "Reference": [f"reference/{page}.md" for page in [*reference.PAGES, "commands"]],
    }
    config.nav = [{title: menu.get(title, entry)} for one in config.nav or [] for title, entry in one.items()]
    return config


def cards(docs: Path) -> list[Path]:
    """The cards of the methods, those of the paper first."""
    found = sorted(path for path in (docs / "methods").glob("*.md") if path.name != "README.md")
    return sorted(found, key=lambda card: not card.name.startswith(("lesam", "sam")))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Pages that are made."""
    docs = Path(config.docs_dir)
    try:
        made = reference.pages(reference.load())
    except reference.UndocumentedError as error:
        raise PluginError(str(error)) from error
    made["reference/commands.md"] = reference.commands()
    made |= {page: from_root((ROOT / name).read_text()) for name, page in ELSEWHERE.items()}
    made |= {part.page: part.text for part in set_ups.parts(docs)}
    made |= {"training-set-ups.md": set_ups.front(docs)}
    for script in sorted((docs / "tutorials").glob("*.py")):
        shown = tutorials.run(script)
        page = f"tutorials/{script.stem}.md"
        made[page] = shown.markdown
        for name, picture in shown.pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=picture))
        files.remove(files.src_uris[f"tutorials/{script.name}"])
    for page, text in made.items():
        if page in files.src_uris:
            files.remove(files.src_uris[page])
        files.append(File.generated(config, page, content=text))
    return files


def from_root(text: str) -> str:
    """A file of the repository's first folder, with links as if it lay in docs/."""
    return links.turn(text, lambda target, anchor: (relpath(normpath(target), "docs") if target else "") + anchor)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that leave docs/ and links to what has become another page."""
    here = str(PurePosixPath(page.file.src_uri).parent)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    homes = set_ups.homes(Path(config.docs_dir))

    def turned(target: str, anchor: str) -> str:
        whole = normpath(f"{here}/{target}") if target else page.file.src_uri
        if whole == "training-set-ups.md" and anchor:
            whole = homes.get(anchor.removeprefix("#"), whole)
        elif whole.startswith("tutorials/") and whole.endswith(".py"):
            whole = whole.removesuffix(".py") + ".md"
        elif whole.startswith("../"):
            whole = whole.removeprefix("../")
            if whole not in ELSEWHERE:
                if not (ROOT / whole).exists():
                    raise PluginError(f"{page.file.src_uri} links to {target}, which does not exist")
                return f"{project['urls']['Source']}/blob/main/{whole}{anchor}"
            whole = ELSEWHERE[whole]
        return anchor if whole == page.file.src_uri and anchor else relpath(whole, here) + anchor

    return links.turn(markdown, turned)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas, in the text and in the list of its headings."""
    try:
        for heading in (below for top in page.toc for below in (top, *top.children)):
            heading.title = formulas.render_heading(heading.title)
        return formulas.render(html)
    except formulas.UnrenderedFormulaError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error
