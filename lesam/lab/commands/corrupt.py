"""``lesam corrupt``: the accuracy of trained runs on images with common corruptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from lesam.lab.commands.options import RunPaths, of_run, trained_runs

if TYPE_CHECKING:
    from lesam.lab.attacks.corrupted import CorruptedRun


def corrupt(
    runs: RunPaths,
    *,
    epoch: Annotated[int | None, Parameter(help="Ask the checkpoint after this number of epochs.")] = None,
    split: Annotated[Literal["train", "validation", "test"], Parameter(help="Images to corrupt.")] = "test",
    samples: Annotated[int | None, Parameter(help="Corrupt this number of them, drawn at random.")] = None,
    batch_size: Annotated[int, Parameter(help="Images at a time.")] = 1024,
    seed: Annotated[int, Parameter(help="Seed of the noise.")] = 0,
    device: Annotated[str, Parameter(help="cpu, cuda, mps or auto.")] = "auto",
) -> None:
    """Tabulate what the networks of RUNS get right on noisy, blurred and otherwise corrupted images.

    Seven corruptions of CIFAR-C at five severities each; the table has their means over the severities. Every outcome
    is kept in its run's folder; asked again, the same question is answered from there.
    """
    from lesam.lab import console
    from lesam.lab.attacks.corrupted import corrupt_run
    from lesam.lab.attacks.corruptions import CORRUPTIONS
    from lesam.lab.runs.repetitions import group

    rows = [("recipe", "scale", "method", "n", "images", "clean (%)", "corrupted (%)", *CORRUPTIONS)]
    for cell in group(trained_runs(runs, epoch)):
        outcomes = []
        for run in cell.runs:
            with console.measurements() as watch:
                outcomes.append(
                    corrupt_run(
                        run,
                        epoch=epoch,
                        split=split,
                        samples=samples,
                        batch_size=batch_size,
                        seed=seed,
                        device=device,
                        progress=of_run(watch, cell, run),
                    )
                )
            if outcomes[-1].reused:
                print(f"{outcomes[-1].file} has the answer already", flush=True)
        rows.append((cell.config.recipe, cell.config.scale, cell.label, str(len(outcomes)), *_numbers(outcomes)))
    console.show(rows, notes="Means over five severities; corrupted: over all corruptions.")


def _numbers(outcomes: list[CorruptedRun]) -> list[str]:
    """The cells of one method."""
    from lesam.lab.runs.statistics import Spread

    return [
        str(outcomes[0].images),
        Spread.of([outcome.clean for outcome in outcomes]).text(),
        Spread.of([outcome.mean for outcome in outcomes]).text(),
        *(Spread.of([outcome.means[name] for outcome in outcomes]).text() for name in outcomes[0].corrupted),
    ]
