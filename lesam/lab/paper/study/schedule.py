"""Which runs a contest needs, in order: trials of a group of entries, what validation chose, and what follows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lesam.lab.config.run import RunConfig
from lesam.lab.paper.experiment import Request
from lesam.lab.paper.study import records
from lesam.lab.paper.study.contest import TRACKED_SEEDS, Contest, Follower, Group, Part
from lesam.lab.paper.study.entries import Ranges
from lesam.lab.paper.study.records import Record
from lesam.lab.runs.folder import RunFolder
from lesam.lab.sweeps.tuning import SEARCH_SEEDS, Entry, Setting, Summary, choose


@dataclass(frozen=True, kw_only=True, slots=True)
class ContestRun:
    """A run and its part in the contest."""

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
    known: Record | None = None
    """Of the same run, from a contest that had it before."""

    def answered_by(self, one: Record) -> bool:
        """Whether a record of the same run has everything that one of this part has."""
        return set(self.attacks) <= set(one.attacked) and (self.part != "track" or bool(one.curve))

    @property
    def configuration(self) -> Setting:
        """Every field that differs from the recipe's own."""
        return (*self.entry.fixed, *(self.entry.trial if self.part == "search" else ()), *self.setting)

    def record(self, runs: Path) -> Record | None:
        """What is kept of it; None until it is finished."""
        folder = RunFolder.of(self.config, runs)
        summary = folder.summary()
        if summary is not None:
            return records.record(
                self.name,
                self.part,
                self.setting,
                folder,
                summary,
                configuration=self.configuration,
                attacks=self.attacks,
            )
        if self.known is None:
            return None
        return replace(
            self.known,
            entry=self.name,
            part=self.part,
            setting=self.setting,
            method=self.entry.method,
            configuration=self.configuration,
            attacked={name: self.known.attacked[name] for name in self.attacks},
        )


def contest_runs(contest: Contest, request: Request) -> Iterator[ContestRun]:
    """The trials, the repetitions of every entry whose trials are finished, and what follows them."""
    known = {} if request.records is None else records.known(request.records)
    for run in _runs(contest, request, known):
        found = known.get(run.config.fingerprint)
        yield run if found is None or not run.answered_by(found) else replace(run, known=found)


def _runs(contest: Contest, request: Request, known: Mapping[str, Record]) -> Iterator[ContestRun]:
    order = 0
    for stage in contest.stages:
        if request.recipes and stage.recipe not in request.recipes:
            continue
        on = _Stage(contest, stage, request, known)
        for group in contest.groups(stage, request.scale):
            for entry in group.entries:
                asked = not request.methods or entry.method in request.methods
                # What was best for the base decides everything else, so its search is part of every part.
                if asked or entry == on.base:
                    yield from on.of_entry(entry, order, group if asked else replace(group, repeated=False))
            for follower in group.followers:
                if not request.methods or follower.leader.method in request.methods:
                    yield from on.of_follower(follower, order)
            order += 2


@dataclass(frozen=True, slots=True)
class _Stage:
    """A stage of a contest, as it was asked for."""

    contest: Contest
    stage: Ranges
    request: Request
    known: Mapping[str, Record]

    def of_entry(self, entry: Entry, order: int, group: Group) -> Iterator[ContestRun]:
        entered, scale = self._with_the_bases_setting(entry), self.request.scale
        if entered is None:
            return
        for setting, config in entered.trials(scale=scale, seeds=SEARCH_SEEDS):
            yield ContestRun(name=entry.name, entry=entered, part="search", setting=setting, config=config, order=order)
        chosen = self._chosen(entered) if group.repeated else None
        if chosen is None:
            return
        for seed in self.fresh(group.repeats):
            yield ContestRun(
                name=entry.name,
                entry=entered,
                part="repeat",
                setting=chosen,
                config=entered.config(chosen, scale=scale, seed=seed),
                order=order + 1,
                attacks=self.stage.attacks,
            )

    def of_follower(self, follower: Follower, order: int) -> Iterator[ContestRun]:
        leader = self._with_the_bases_setting(follower.leader)
        chosen = None if leader is None else self._chosen(leader)
        if leader is None or chosen is None:
            return
        entered = replace(leader, fixed=(*leader.fixed, *follower.changes))
        setting = follower.setting(chosen)
        for seed in TRACKED_SEEDS if follower.part == "track" else self.fresh():
            config = entered.config(setting, scale=self.request.scale, seed=seed)
            yield ContestRun(
                name=follower.name, entry=entered, part=follower.part, setting=setting, config=config, order=order
            )

    @property
    def base(self) -> Entry:
        """The base alone, which is searched first."""
        return self.contest.groups(self.stage, self.request.scale)[0].entries[0]

    def fresh(self, number: int | None = None) -> tuple[int, ...]:
        """Seeds of the repetitions, none of the search: those asked for, or a number, by default the stage's."""
        fresh = tuple(seed for seed in self.request.seeds if seed not in SEARCH_SEEDS)
        if not fresh:
            raise ValueError(f"seeds {SEARCH_SEEDS} are those of the search; repetitions need others")
        return fresh[: number or self.stage.repeats] if fresh == self.contest.seeds else fresh

    def _with_the_bases_setting(self, entry: Entry) -> Entry | None:
        """The entry with everything but radius and budget as it was best for the base; None until that is known."""
        changed = replace(entry, fixed=(*entry.fixed, *self.request.changes))
        if entry.method == self.stage.base:
            return changed
        tuned = self._chosen(replace(self.base, fixed=(*self.base.fixed, *self.request.changes)))
        return None if tuned is None else replace(changed, fixed=(*tuned, *changed.fixed))

    def _chosen(self, entry: Entry) -> Setting | None:
        choice = choose(entry, self._summary, scale=self.request.scale, seeds=SEARCH_SEEDS)
        return None if choice is None else choice.setting

    def _summary(self, config: RunConfig) -> Summary | None:
        """As :meth:`ContestRun.record` has it: a folder counts before a record."""
        summary, found = RunFolder.of(config, self.request.runs).summary(), self.known.get(config.fingerprint)
        return found.summary if summary is None and found is not None else summary


def finished(contest: Contest, request: Request) -> list[Record]:
    """What is kept of every run that is finished."""
    return [record for run in contest_runs(contest, request) if (record := run.record(request.runs))]


def export(contest: Contest, request: Request, folder: Path) -> list[Record]:
    """Add what is finished to the records in a folder, and return all of them."""
    every = records.merged(records.read(folder), finished(contest, request))
    records.write(every, folder)
    return every
