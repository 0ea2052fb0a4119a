"""``lesam list``: the names one may use."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

Kind = Literal["recipes", "methods", "scales", "models", "data"]


def listing(kind: Annotated[Kind | None, Parameter(help="List only these.")] = None) -> None:
    """List recipes, methods, scales, models and data sets; one name a line when piped."""
    from lesam.lab import console, data, models, recipes
    from lesam.lab.config.optimizer import description, methods, title

    known: dict[str, list[tuple[str, str]]] = {
        "recipes": [(name, recipe.title) for name, recipe in recipes.known().items()],
        "methods": [(name, f"{title(name)}. {description(name)}") for name in methods()],
        "scales": [(name, "") for name in recipes.SCALES],
        "models": [(name, "") for name in models.NAMES],
        "data": [(name, "") for name in data.NAMES],
    }
    for heading, names in (known if kind is None else {kind: known[kind]}).items():
        console.show([(heading, ""), *names], plain="".join(f"{name}\n" for name, _ in names))
