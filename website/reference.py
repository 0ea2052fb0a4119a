"""Pages of the reference, made from the names that the package makes public; each must be documented."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
#: page, title, and the modules whose public names it has; the optimizers are documented under the names users write
PAGES: dict[str, tuple[str, list[str]]] = {
    "optimizers": ("The optimizers and their parts", ["lesam.optim"]),
    "schedules": ("Schedules", ["lesam.schedules"]),
    "flatness": ("Flatness", ["lesam.flatness", "lesam.flatness.figures"]),
    "integrations": ("Frameworks", ["lesam.integrations.*"]),
    "lab": ("The lab", ["lesam.lab.training.loop", "lesam.lab.recipes", "lesam.lab.config"]),
}
#: what a page shows of a module that does not list its public names
ONLY = {"lesam.lab.training.loop": ["train"]}


class UndocumentedError(ValueError):
    """Public names without a docstring."""


@functools.cache
def load(folder: Path = ROOT) -> griffe.Module:
    """The package as its source says, without importing it."""
    package = griffe.load("lesam", search_paths=[folder], try_relative_path=False, resolve_aliases=True)
    assert isinstance(package, griffe.Module)
    return package


def pages(package: griffe.Module) -> dict[str, str]:
    """Text of every page by its name; raises if a public name is not documented."""
    missing: list[str] = []
    written = {}
    for page, (title, patterns) in PAGES.items():
        lines = [f"# {title}\n"]
        for module in (module for pattern in patterns for module in _modules(package, pattern)):
            names = _public(module)
            missing += [path for name in names for path in _undocumented(module, name)]
            lines.append(f"{_first_line(module)}\n")
            shown = "lesam" if module.path == "lesam.optim" else module.path
            lines += [f"::: {shown}.{name}\n" for name in names if name != "schedules"]
        written[f"reference/{page}.md"] = "\n".join(lines)
    if missing:
        raise UndocumentedError(f"public names without a docstring: {', '.join(missing)}")
    return written


@functools.cache
def addresses(package: griffe.Module) -> dict[str, str]:
    """Where the reference has a public name; one that two modules have is that of the first."""
    found: dict[str, str] = {}
    for module in (
        module for _, patterns in PAGES.values() for pattern in patterns for module in _modules(package, pattern)
    ):
        shown = "lesam" if module.path == "lesam.optim" else module.path
        for name in _public(module):
            found.setdefault(name, f"{shown}.{name}")
    return found


def commands() -> str:
    """The command line, as it describes itself."""
    from lesam.lab.cli import make_app

    text = make_app().generate_docs(output_format="markdown")
    text = re.sub(r"^## Table of Contents\n.*?(?=^\*\*Commands)", "", text, flags=re.DOTALL | re.MULTILINE)
    return text.replace("# lesam\n", "# The command line\n", 1)


def _modules(package: griffe.Module, pattern: str) -> list[griffe.Module]:
    if not pattern.endswith(".*"):
        found = package[pattern.removeprefix("lesam.")]
        return [found]
    parent = package[pattern.removesuffix(".*").removeprefix("lesam.")]
    return [module for name, module in sorted(parent.modules.items()) if not name.startswith("_")]


def _public(module: griffe.Module) -> list[str]:
    if module.path in ONLY:
        return ONLY[module.path]
    if module.exports is not None:
        return [str(name) for name in module.exports]
    return [
        name
        for name, member in module.members.items()
        if not name.startswith("_") and not member.is_alias and (member.is_class or member.is_function)
    ]


def _undocumented(module: griffe.Module, name: str) -> Iterator[str]:
    """The name itself, and public functions of a class that neither it nor the class it inherits from describes."""
    found = _target(module[name])
    if not found.docstring:
        yield f"{module.path}.{name}"
    if isinstance(found, griffe.Class):
        family = [found, *found.mro()]
        for own, member in found.members.items():
            if own.startswith("_") or not (member.is_function or member.is_class):
                continue
            if not any(own in one.members and one.members[own].docstring for one in family):
                yield f"{module.path}.{name}.{own}"


def _target(found: griffe.Object | griffe.Alias) -> griffe.Object:
    return found.final_target if isinstance(found, griffe.Alias) else found


def _first_line(module: griffe.Module) -> str:
    if not module.docstring:
        raise UndocumentedError(f"module {module.path} has no docstring")
    text = module.docstring.value.split("\n\n")[0].replace("\n", " ")
    return f"`{module.path}`: {text[0].lower()}{text[1:]}"
