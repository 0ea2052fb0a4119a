"""What a whole run of each entry takes: seconds of one core, in turns, because runs of a contest share a machine.

The seconds of a finished run say how busy the machine was as much as how dear the method is: entries are trained on
different days, beside different work. Here the chosen setting of every entry is trained once more with its first seed,
an epoch of each in turn in one process, and the time that the processor worked for it is counted, steps alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from lesam.lab.paper.racing import Racer
from lesam.lab.paper.study.records import Record, commit_words
from lesam.lab.paper.study.schedule import ContestRun
from lesam.lab.runs import environment
from lesam.lab.training.fabric import make_fabric
from lesam.lab.training.session import Session


def timed(runs: Iterable[ContestRun], progress: Callable[[str], None] = print) -> list[Record]:
    """A record of every entry, from the first repetition of each; all are runs of one recipe."""
    first: dict[str, ContestRun] = {}
    for run in runs:
        if run.part == "repeat":
            first.setdefault(run.name, run)
    racers = {name: Racer(Session(run.config, make_fabric(run.config.system))) for name, run in first.items()}
    seconds = dict.fromkeys(racers, 0.0)
    epochs = max((run.config.schedule.epochs for run in first.values()), default=0)
    for epoch in range(epochs):
        for name, racer in racers.items():
            seconds[name] += racer.run(racer.steps_per_epoch, clock=time.process_time)
        progress(f"epoch {epoch + 1} of {epochs}")
    return [
        Record(
            entry=name,
            recipe=run.config.recipe,
            part="time",
            setting=run.setting,
            seed=run.config.seed,
            fingerprint=run.config.fingerprint,
            commit=commit_words(environment.commit()),
            seconds=round(seconds[name], 2),
            diverged=False,
            last={},
            method=run.config.method,
            configuration=run.configuration,
        )
        for name, run in first.items()
    ]
