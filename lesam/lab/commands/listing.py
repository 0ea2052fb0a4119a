"""``lesam list``: the names one may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from lesam.lab.recipes import Recipe

Kind = Literal["recipes", "methods", "scales", "models", "data"]


TITLES: dict[Kind, str] = {
    "recipes": "Recipes: what `lesam train` and `lesam sweep` take",
    "methods": "Methods: --method",
    "scales": "Scales: --scale",
    "models": "Models: --set model.name",
    "data": "Data sets: --set data.name",
}


def listing(kind: Annotated[Kind | None, Parameter(help="List only these.")] = None) -> None:
    """List recipes, methods, scales, models and data sets with a line about each.

    Of one kind, whose names a program may want, only the names are printed when piped, one a line.
    """
    from lesam.lab import console, data, models, recipes
    from lesam.lab.config.optimizer import description, methods, title
    from lesam.lab.recipes.recipe import SCALE_TITLES

    known: dict[Kind, list[tuple[str, str]]] = {
        "recipes": [(name, _described(recipe)) for name, recipe in recipes.known().items()],
        "methods": [(name, f"{title(name)}. {description(name)}") for name in methods()],
        "scales": list(SCALE_TITLES.items()),
        "models": [(name, models.TITLES[name]) for name in models.NAMES],
        "data": [(name, data.TITLES[name]) for name in data.NAMES],
    }
    if kind is not None:
        names = known[kind]
        console.show(
            [("name", "what it is"), *names], title=TITLES[kind], plain="".join(f"{name}\n" for name, _ in names)
        )
        return
    for each, names in known.items():
        table = [("name", "what it is"), *names]
        console.show(table, title=TITLES[each], plain=f"{TITLES[each]}\n\n{console.markdown(table)}\n")


def _described(recipe: Recipe) -> str:
    """What a recipe trains, and its scales where it does not have all."""
    return f"{recipe.title} (scales {', '.join(recipe.scales)})" if recipe.without else recipe.title
