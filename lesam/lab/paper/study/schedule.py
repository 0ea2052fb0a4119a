"""Which runs the study needs, in order: trials of a group of entries, what validation chose, and what follows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from lesam.lab.config.run import RunConfig
from lesam.lab.paper.experiment import Request
from lesam.lab.paper.study import records
from lesam.lab.paper.study.entries import STAGES, Ranges
from lesam.lab.paper.study.groups import TRACKED_SEEDS, Follower, Part, groups
from lesam.lab.paper.study.records import Record
from lesam.lab.runs.folder import RunFolder
from lesam.lab.sweeps.tuning import SEARCH_SEEDS, Entry, Setting, choose, finished_in

DEFAULT_SEEDS = tuple(range(max(stage.repeats for stage in STAGES)))
"""Where nobody asks for others, of which each stage takes as many as it has repetitions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyRun:
    """A run and its part in the study."""

    name: str
    """Of the entry or follower that it belongs to."""
    entry: Entry
    part: Part
    setting: Setting
    config: RunConfig
    order: int
    """Runs of a smaller number come first."""
    attacks: tuple[str, ...] = ()
    """Carried out when its record is made."""

    def record(self, runs: Path) -> Record | None:
        """What is kept of it; None until it is finished."""
        folder = RunFolder.of(self.config, runs)
        summary = folder.summary()
        if summary is None:
            return None
        return records.record(self.name, self.part, self.setting, folder, summary, self.attacks)


def study_runs(request: Request) -> Iterator[StudyRun]:
    """The trials, the repetitions of every entry whose trials are finished, and what follows them."""
    order = 0
    for stage in STAGES:
        if request.recipes and stage.recipe not in request.recipes:
            continue
        for group in groups(stage, request.scale):
            for entry in group.entries:
                asked = not request.methods or entry.method in request.methods
                # What was best for the base decides everything else, so its search is part of every part.
                if asked or entry == _base(stage, request):
                    yield from _of_entry(entry, stage, order, request, repeated=group.repeated and asked)
            for follower in group.followers:
                if not request.methods or follower.leader.method in request.methods:
                    yield from _of_follower(follower, stage, order, request)
            order += 2


def _of_entry(entry: Entry, stage: Ranges, order: int, request: Request, *, repeated: bool) -> Iterator[StudyRun]:
    entered = _with_the_bases_setting(entry, stage, request)
    if entered is None:
        return
    for setting, config in entered.trials(scale=request.scale, seeds=SEARCH_SEEDS):
        yield StudyRun(name=entry.name, entry=entered, part="search", setting=setting, config=config, order=order)
    chosen = _chosen(entered, request) if repeated else None
    if chosen is None:
        return
    for seed in _fresh(stage, request):
        config = entered.config(chosen, scale=request.scale, seed=seed)
        yield StudyRun(
            name=entry.name,
            entry=entered,
            part="repeat",
            setting=chosen,
            config=config,
            order=order + 1,
            attacks=stage.attacks,
        )


def _of_follower(follower: Follower, stage: Ranges, order: int, request: Request) -> Iterator[StudyRun]:
    leader = _with_the_bases_setting(follower.leader, stage, request)
    chosen = None if leader is None else _chosen(leader, request)
    if leader is None or chosen is None:
        return
    entered = replace(leader, fixed=(*leader.fixed, *follower.changes))
    setting = follower.setting(chosen)
    for seed in TRACKED_SEEDS if follower.part == "track" else _fresh(stage, request):
        config = entered.config(setting, scale=request.scale, seed=seed)
        yield StudyRun(
            name=follower.name, entry=entered, part=follower.part, setting=setting, config=config, order=order
        )


def _with_the_bases_setting(entry: Entry, stage: Ranges, request: Request) -> Entry | None:
    """The entry with everything but radius and budget as it was best for the base; None until that is known."""
    changed = replace(entry, fixed=(*entry.fixed, *request.changes))
    if entry.method == stage.base:
        return changed
    base = _base(stage, request)
    tuned = _chosen(replace(base, fixed=(*base.fixed, *request.changes)), request)
    return None if tuned is None else replace(changed, fixed=(*tuned, *changed.fixed))


def _base(stage: Ranges, request: Request) -> Entry:
    """The base alone, which is searched first."""
    return groups(stage, request.scale)[0].entries[0]


def _chosen(entry: Entry, request: Request) -> Setting | None:
    choice = choose(entry, finished_in(request.runs), scale=request.scale, seeds=SEARCH_SEEDS)
    return None if choice is None else choice.setting


def _fresh(stage: Ranges, request: Request) -> tuple[int, ...]:
    """Seeds of the repetitions: those asked for, or as many as the stage has; none of the search."""
    fresh = tuple(seed for seed in request.seeds if seed not in SEARCH_SEEDS)
    if not fresh:
        raise ValueError(f"seeds {SEARCH_SEEDS} are those of the search; repetitions need others")
    return fresh[: stage.repeats] if fresh == DEFAULT_SEEDS else fresh


def export(request: Request, folder: Path) -> list[Record]:
    """Add what is finished to the records in a folder, and return all of them."""
    found = [record for run in study_runs(request) if (record := run.record(request.runs))]
    every = records.merged(records.read(folder), found)
    records.write(every, folder)
    return every
