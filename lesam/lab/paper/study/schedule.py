"""Which runs the study needs, and in which order: trials of a group of entries, then what validation chose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from lesam.lab.config.run import RunConfig
from lesam.lab.paper.experiment import Request
from lesam.lab.paper.study import records
from lesam.lab.paper.study.entries import STAGES, Ranges, groups
from lesam.lab.paper.study.records import Record, Stage
from lesam.lab.runs.folder import RunFolder
from lesam.lab.sweeps.tuning import SEARCH_SEEDS, Entry, Setting, choose, finished_in


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyRun:
    """A run and its part in the study."""

    entry: Entry
    stage: Stage
    setting: Setting
    config: RunConfig
    order: int
    """Runs of a smaller number come first."""

    def record(self, runs: Path) -> Record | None:
        """What is kept of it; None until it is finished."""
        folder = RunFolder.of(self.config, runs)
        summary = folder.summary()
        return None if summary is None else records.record(self.entry.name, self.stage, self.setting, folder, summary)


def study_runs(request: Request) -> Iterator[StudyRun]:
    """The trials, and the repetitions of every entry whose trials are finished."""
    order = 0
    for stage in STAGES:
        if request.recipes and stage.recipe not in request.recipes:
            continue
        for group in groups(stage, request.scale):
            for entry in group:
                if not request.methods or entry.method in request.methods:
                    yield from _of_entry(entry, stage, order, request)
            order += 2


def _of_entry(entry: Entry, stage: Ranges, order: int, request: Request) -> Iterator[StudyRun]:
    base = groups(stage, request.scale)[0][0]
    tuned = _chosen(replace(base, fixed=request.changes), request)
    if entry.method == stage.base:
        entry = replace(entry, fixed=(*entry.fixed, *request.changes))
    elif tuned is not None:  # everything but radius and budget is what was best for the base
        entry = replace(entry, fixed=(*tuned, *entry.fixed, *request.changes))
    else:
        return
    for setting, config in entry.trials(scale=request.scale, seeds=SEARCH_SEEDS):
        yield StudyRun(entry=entry, stage="search", setting=setting, config=config, order=order)
    chosen = _chosen(entry, request)
    if chosen is None:
        return
    for seed in _fresh(stage, request):
        config = entry.config(chosen, scale=request.scale, seed=seed)
        yield StudyRun(entry=entry, stage="repeat", setting=chosen, config=config, order=order + 1)


def _chosen(entry: Entry, request: Request) -> Setting | None:
    choice = choose(entry, finished_in(request.runs), scale=request.scale, seeds=SEARCH_SEEDS)
    return None if choice is None else choice.setting


def _fresh(stage: Ranges, request: Request) -> tuple[int, ...]:
    """Seeds of the repetitions: as many as the stage has, none of the search."""
    fresh = tuple(seed for seed in request.seeds if seed not in SEARCH_SEEDS)
    if not fresh:
        raise ValueError(f"seeds {SEARCH_SEEDS} are those of the search; repetitions need others")
    return fresh[: stage.repeats]


def export(request: Request, folder: Path) -> list[Record]:
    """Add what is finished to the records in a folder, and return all of them."""
    found = [record for run in study_runs(request) if (record := run.record(request.runs))]
    every = records.merged(records.read(folder), found)
    records.write(every, folder)
    return every
