"""``lesam attack``: the accuracy of trained runs on attacked images."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from lesam.lab.commands.options import RunPaths, of_run, trained_runs

if TYPE_CHECKING:
    from lesam.lab.attacks.pgd import Attack
    from lesam.lab.runs.folder import RunFolder


def attack(
    runs: RunPaths,
    *,
    norm: Annotated[Literal["linf", "l2"], Parameter(help="Norm of the perturbation.")] = "linf",
    eps: Annotated[str, Parameter(help="Its radius in pixels of [0, 1], as in 1/255 or 0.01.")] = "1/255",
    step_size: Annotated[
        str | None, Parameter(help="Length of a step; by default a quarter (linf) or an eighth (l2) of the radius.")
    ] = None,
    steps: Annotated[int, Parameter(help="Steps of an attack.")] = 10,
    restarts: Annotated[int, Parameter(help="Random starts; an image is broken when any of them breaks it.")] = 1,
    keep: Annotated[
        Literal["last", "worst"], Parameter(help="Of each start the last iterate, or the worst one.")
    ] = "last",
    epoch: Annotated[int | None, Parameter(help="Attack the checkpoint after this number of epochs.")] = None,
    split: Annotated[Literal["train", "validation", "test"], Parameter(help="Images to attack.")] = "test",
    samples: Annotated[int | None, Parameter(help="Attack this number of them, drawn at random.")] = None,
    batch_size: Annotated[int, Parameter(help="Images attacked at a time.")] = 1024,
    final_norm: Annotated[
        Literal["correct", "sam_at_bug"],
        Parameter(help="sam_at_bug answers through CIFAR-10's constants, as a published evaluation did by mistake."),
    ] = "correct",
    seed: Annotated[int, Parameter(help="Seed of the random starts.")] = 0,
    device: Annotated[str, Parameter(help="cpu, cuda, mps or auto.")] = "auto",
) -> None:
    """Attack the networks of RUNS by projected gradient ascent on pixels, and tabulate what they still get right.

    Every outcome is kept in its run's folder; asked again, the same question is answered from there.
    """
    from lesam.lab.attacks.pgd import Attack

    radius = length(eps, "eps")
    step = Attack.usual(norm, radius).step_size if step_size is None else length(step_size, "step-size")
    chosen = Attack(norm, radius, step, steps=steps, restarts=restarts, keep=keep)
    options = {
        "epoch": epoch,
        "split": split,
        "samples": samples,
        "batch_size": batch_size,
        "final_norm": final_norm,
        "seed": seed,
        "device": device,
    }
    _show(trained_runs(runs, epoch), chosen, options)


def length(text: str, name: str) -> float:
    """A number or a fraction.

    >>> length("8/255", "eps") == 8 / 255, length("0.25/255", "step-size") == 0.25 / 255
    (True, True)
    """
    numerator, slash, denominator = text.partition("/")
    try:
        value = Fraction(numerator.strip()) / (Fraction(denominator.strip()) if slash else 1)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"--{name} is a number or a fraction such as 1/255, got {text!r}") from None
    return float(value)


def describe(attack: Attack, options: dict[str, Any]) -> str:
    """The settings in one line."""
    parts = [
        f"{attack.norm}, eps {attack.eps * 255:.4g}/255, {attack.steps} steps of {attack.step_size * 255:.4g}/255",
        f"{attack.restarts} restarts" if attack.restarts > 1 else "one start",
        f"{attack.keep} iterate",
        f"{options['split']} split",
        f"seed {options['seed']}",
    ]
    if options["epoch"] is not None:
        parts.append(f"after epoch {options['epoch']}")
    if options["final_norm"] != "correct":
        parts.append(f"final norm {options['final_norm']}")
    return ", ".join(parts)


def _show(runs: Sequence[RunFolder], attack: Attack, options: dict[str, Any]) -> None:
    """Attack every run and print the table."""
    from lesam.lab import console, recipes
    from lesam.lab.attacks.pgd import PRESETS
    from lesam.lab.attacks.run import attack_run
    from lesam.lab.recipes.published import published_under_attack
    from lesam.lab.recipes.recipe import MARK, not_given
    from lesam.lab.runs.repetitions import group
    from lesam.lab.runs.statistics import Spread

    head = ("recipe", "scale", "method", "n", "images", "clean (%)", "attacked (%)", "paper (%)")
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    whole = options["split"] == "test" and options["samples"] is None and options["epoch"] is None
    preset = next((name for name, known in PRESETS.items() if whole and known == attack), "")
    for cell in group(runs):
        outcomes = []
        for run in cell.runs:
            with console.measurements() as watch:
                outcome = attack_run(run, attack, **options, progress=of_run(watch, cell, run))
            if outcome.reused:
                print(f"{outcome.file} has the answer already", flush=True)
            outcomes.append(outcome.robustness)
        figure = published_under_attack(cell.config, preset)
        ours = recipes.ours(cell.config.recipe, cell.config.method)
        rows.append(
            (
                cell.config.recipe,
                cell.config.scale,
                cell.label,
                str(len(outcomes)),
                str(outcomes[0].samples),
                Spread.of([outcome.clean for outcome in outcomes]).text(),
                Spread.of([outcome.attacked for outcome in outcomes]).text(),
                "" if figure is None else f"{figure:.2f}" + (f" {MARK}" if ours else ""),
            )
        )
        if figure is not None and ours:
            notes.append(f"{MARK} {cell.config.recipe} with {cell.label}: {not_given(ours)}")
    print(f"\n{describe(attack, options)}\n")
    console.show([head, *rows], notes=" ".join(notes))
