"""What an experiment leaves out at a scale: recipes that do not have it."""

from __future__ import annotations

from lesam.lab import recipes
from lesam.lab.paper.experiment import Experiment, Request


def left_out(experiment: Experiment, scale: str) -> list[str]:
    """A sentence for each reason why recipes of an experiment are not there at a scale.

    >>> from lesam.lab.paper import find
    >>> left_out(find("vit-finetune"), "small")
    ['vit-finetune leaves out vit-cifar10, vit-cifar100 at scale small: a small vision transformer ...']
    >>> left_out(find("vit-finetune"), "paper")
    []
    """
    reasons: dict[str, list[str]] = {}
    for recipe in experiment.recipes:
        if not recipes.has_scale(recipe, scale):
            reasons.setdefault(recipes.known()[recipe].without[scale], []).append(recipe)
    return [
        f"{experiment.name} leaves out {', '.join(named)} at scale {scale}: {reason}."
        for reason, named in reasons.items()
    ]


def anything_left(experiment: Experiment, scale: str) -> bool:
    """Whether some recipe of an experiment has the scale."""
    return any(recipes.has_scale(recipe, scale) for recipe in experiment.recipes)


def check(experiment: Experiment, request: Request) -> None:
    """Refuse a recipe that was asked for by name, or an experiment of which nothing is left, at the request's scale."""
    for recipe in request.recipes:
        recipes.check_scale(recipe, request.scale)
    if not anything_left(experiment, request.scale):
        others = [scale for scale in recipes.SCALES if anything_left(experiment, scale)]
        raise ValueError(
            f"nothing is left of {experiment.name} at scale {request.scale}; take --scale {' or '.join(others)}. "
            + " ".join(left_out(experiment, request.scale))
        )
