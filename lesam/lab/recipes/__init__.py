"""Recipes: functions that return the full configuration of a run, one for each cell of the paper's tables.

There are three scales. ``smoke`` takes seconds and needs no data, ``small`` is a setting on real images for two CPU
cores (``docs/small-scale.md``), which not every recipe has, ``paper`` is the paper's own. Fields are changed with
:func:`lesam.lab.config.text.override` or ``--set`` on the command line.

Every module of this folder that has ``RECIPES`` is found: a new recipe is one file, with its setting, the radii of the
methods and the paper's figures side by side. A recipe of your own needs no place here: a function ``my_recipe(method,
scale, seed) -> RunConfig`` in ``my_module.py`` is called ``my_module:my_recipe`` on the command line.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Mapping
from functools import cache

from lesam.lab.config import RunConfig
from lesam.lab.config.optimizer import methods
from lesam.lab.config.suggest import unknown
from lesam.lab.config.text import normalise
from lesam.lab.recipes.recipe import SCALES, Build, Figure, Recipe

__all__ = [
    "SCALES",
    "Build",
    "Figure",
    "Recipe",
    "attacked",
    "build",
    "check_scale",
    "figures",
    "guesses",
    "has_scale",
    "known",
    "names",
    "ours",
]


@cache
def known() -> dict[str, Recipe]:
    """All recipes of this folder by name."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {recipe.name: recipe for module in modules for recipe in getattr(module, "RECIPES", ())}


def names() -> tuple[str, ...]:
    """The names of all recipes."""
    return tuple(known())


def figures(recipe: str) -> Mapping[str, Figure]:
    """The paper's test accuracy of a recipe by method; empty for a recipe of somebody else."""
    return known()[recipe].figures if recipe in known() else {}


def ours(recipe: str, method: str = "") -> str:
    """Settings of a recipe at the paper's scale that the paper does not give; empty where it gives all that matter.

    Args:
        recipe: Name of the recipe.
        method: Include what is open for this method alone.

    Example:
        >>> ours("imagenet-resnet50"), ours("imagenet-resnet50", "sam")
        ('', 'rho')
    """
    if recipe not in known():
        return ""
    return "; ".join(filter(None, (known()[recipe].ours, guesses(recipe).get(method))))


def guesses(recipe: str) -> Mapping[str, str]:
    """The same for single methods, by method; empty for a recipe of somebody else."""
    return known()[recipe].guesses if recipe in known() else {}


def attacked(recipe: str) -> Mapping[str, Mapping[str, float]]:
    """The paper's accuracy under attack of a recipe, by method and attack; empty for a recipe of somebody else."""
    return known()[recipe].attacked if recipe in known() else {}


def has_scale(recipe: str, scale: str) -> bool:
    """Whether a recipe has a scale; one of somebody else decides that itself when it is built.

    >>> has_scale("cifar100-resnet18", "small"), has_scale("cifar100-wrn", "small")
    (True, False)
    """
    return recipe not in known() or scale in known()[recipe].scales


def check_scale(recipe: str, scale: str) -> None:
    """Refuse a scale that a recipe does not have.

    Example:
        >>> check_scale("imagenet-resnet50", "small")
        Traceback (most recent call last):
        ...
        ValueError: imagenet-resnet50 has no scale 'small': two CPU cores cannot train on ImageNet...
    """
    if has_scale(recipe, scale):
        return
    found, others = known()[recipe], [name for name in names() if has_scale(name, scale)]
    near = difflib.get_close_matches(recipe, others, n=3, cutoff=0.0)
    raise ValueError(
        f"{recipe} has no scale {scale!r}: {found.without[scale]}; take --scale {' or '.join(found.scales)}, or a "
        f"recipe that has it, such as {', '.join(near)} (`lesam list recipes` shows the scales of all)"
    )


def build(recipe: str, *, method: str = "lesam", scale: str = "small", seed: int = 0) -> RunConfig:
    """The configuration of one run.

    Args:
        recipe: One of :func:`names`, or ``module:function`` for a function of your own, whose module is imported.
        method: One of :func:`lesam.lab.config.optimizer.methods`.
        scale: One of :data:`SCALES` that the recipe has.
        seed: Of the run.

    Example:
        >>> config = build("cifar100-resnet18", method="lesam", scale="paper")
        >>> config.optimizer.sigma, config.optimizer.rho_max, config.schedule.budget_anneal_start
        (0.35, 0.4, 0.8)
    """
    if ":" not in recipe and recipe not in known():
        raise unknown("recipe", recipe, names())
    if method not in methods():
        raise unknown("method", method, methods())
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    if ":" not in recipe:
        check_scale(recipe, scale)
        return normalise(known()[recipe].build(method, scale, seed))
    return _checked(recipe, _imported(recipe)(method, scale, seed), (method, scale, seed))


def _imported(recipe: str) -> Build:
    """The function that ``module:function`` names, from the current folder or the path."""
    module_name, _, function_name = recipe.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), function_name)):
        raise ValueError(f"a recipe of your own is named module:function, as Python imports them; got {recipe!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module_name.partition(".")[0]:
            raise  # the module is there, and what it imports is not
        raise ValueError(
            f"no module {module_name!r} for the recipe {recipe!r}; it must lie in {os.getcwd()} or on Python's path"
        ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        found = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise unknown(f"function of {module_name}", function_name, found)
    try:
        inspect.signature(function).bind("method", "scale", 0)
    except (TypeError, ValueError):
        raise ValueError(f"{recipe} must be a function of (method, scale, seed) that returns a RunConfig") from None
    built: Build = function
    return built


def _checked(recipe: str, config: object, asked: tuple[str, str, int]) -> RunConfig:
    """What a function of somebody else returned, if it is the run that was asked for."""
    if not isinstance(config, RunConfig):
        raise ValueError(f"{recipe} must return a RunConfig, got {type(config).__name__}")
    if (config.method, config.scale, config.seed) != asked:
        raise ValueError(
            f"{recipe} was asked for method, scale and seed {asked} and returned a run with "
            f"{(config.method, config.scale, config.seed)}"
        )
    if not re.fullmatch(r"[A-Za-z0-9._-]+", config.recipe):
        raise ValueError(
            f"{recipe} names its run recipe={config.recipe!r}; it becomes part of the folder's name and may have "
            "letters, digits, dots, dashes and underscores only"
        )
    return normalise(config)
