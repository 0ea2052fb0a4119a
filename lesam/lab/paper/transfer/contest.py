"""Who is fine-tuned, and which runs that needs: pretrained networks, trials, and repetitions of what validation chose.

Every seed pretrains one network with SGD, from which all entries of that seed start. An entry has five settings, each
tried with the two seeds of the search on held-out images of the new classes; the repetitions have fresh seeds. Learning
rate and weight decay of SAM and LE-SAM are those that were best for SGD.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lesam.lab import recipes
from lesam.lab.config.optimizer import title
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import override
from lesam.lab.paper.experiment import Request
from lesam.lab.paper.study import records
from lesam.lab.paper.study.contest import Part
from lesam.lab.paper.study.entries import doublings, rates
from lesam.lab.paper.study.records import Record
from lesam.lab.paper.transfer.forgetting import forgetting
from lesam.lab.recipes.finetuning import FINETUNING, NEW, PRETRAINING
from lesam.lab.runs.folder import RunFolder
from lesam.lab.sweeps.tuning import SEARCH_SEEDS, Entry, Setting, choose_among, finished_in

BASE = "sgd"
PRETRAINED = f"pretraining, {title(BASE)}"
SCRATCH = f"{title(BASE)}, from scratch"

_DECAY = 5e-4

FINE_TUNED = Entry(name=title(BASE), recipe=FINETUNING, method=BASE, settings=rates(0.01, decay=_DECAY))
"""The base, whose choice the others follow."""

CONTROLS = (
    replace(FINE_TUNED, name=f"{title(BASE)}, twice the epochs", fixed=(f"schedule.epochs={2 * NEW.epochs}",)),
    replace(FINE_TUNED, name=SCRATCH, settings=rates(0.025, decay=_DECAY)),
)
"""The compute of two passes, and what pretraining gives."""

CONTROL_NAMES = tuple(entry.name for entry in CONTROLS)

FOLLOWERS = (
    Entry(name=title("sam"), recipe=FINETUNING, method="sam", settings=doublings("optimizer.rho", 0.05)),
    Entry(name=title("lesam"), recipe=FINETUNING, method="lesam", settings=doublings("optimizer.sigma", 0.05)),
)
"""With the learning rate and weight decay of the base."""

ENTRIES = (FINE_TUNED, *CONTROLS, *FOLLOWERS)


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferRun:
    """A run and its part in the contest."""

    name: str
    part: Part
    setting: Setting
    config: RunConfig
    order: int
    """Runs of a smaller number come first."""
    fixed: Setting = ()
    """What the entry changes of its recipe, beside the setting."""
    pretrained: RunConfig | None = None
    """The run whose weights it starts from."""

    def record(self, runs: Path) -> Record | None:
        """What is kept of it, with what it has forgotten of the old task; None until it is finished."""
        folder = RunFolder.of(self.config, runs)
        summary = folder.summary()
        if summary is None:
            return None
        configuration = (*self.fixed, *self.setting)
        found = records.record(self.name, self.part, self.setting, folder, summary, configuration=configuration)
        if self.pretrained is None:
            return found
        lost = forgetting(folder, RunFolder.of(self.pretrained, runs))
        more = {"old_accuracy_before": lost.before, "old_accuracy": lost.after, "moved": lost.moved}
        return replace(found, last={**found.last, **{name: float(f"{value:.6g}") for name, value in more.items()}})


def entries(scale: str) -> tuple[Entry, ...]:
    """All entries; at the smoke scale two of them with two settings, a look at the machinery."""
    if scale != "smoke":
        return ENTRIES
    return tuple(replace(entry, settings=entry.settings[:2]) for entry in (FINE_TUNED, FOLLOWERS[-1]))


def transfer_runs(request: Request) -> Iterator[TransferRun]:
    """All runs that can be named yet: what starts from weights needs the weights, repetitions need a choice."""
    fresh = tuple(seed for seed in request.seeds if seed not in SEARCH_SEEDS)
    if not fresh:
        raise ValueError(f"seeds {SEARCH_SEEDS} are those of the search; repetitions need others")
    yield from (_pretraining(request, seed, "search", 0) for seed in SEARCH_SEEDS)
    yield from (_pretraining(request, seed, "repeat", 3) for seed in fresh)
    base: Setting | None = None
    for entry in entries(request.scale):
        asked = not request.methods or entry.method in request.methods
        if not asked and entry.name != FINE_TUNED.name:
            continue
        follows = entry.method != BASE
        if follows and base is None:
            continue
        entered = replace(entry, fixed=(*(base or ()), *entry.fixed)) if follows else entry
        # The controls come last: a contest that is stopped early has its answer.
        order = 5 if entry.name in CONTROL_NAMES else 2 if follows else 1
        trials = list(_runs(request, entered, "search", entered.settings, SEARCH_SEEDS, order))
        yield from trials
        chosen = _chosen(request, trials, expected=len(entered.settings) * len(SEARCH_SEEDS))
        if entry.name == FINE_TUNED.name:
            base = chosen
        if chosen is not None and asked:
            yield from _runs(request, entered, "repeat", [chosen], fresh, max(4, order + 1))


def _pretraining(request: Request, seed: int, part: Part, order: int) -> TransferRun:
    return TransferRun(name=PRETRAINED, part=part, setting=(), config=_pretrained(request, seed), order=order)


def _pretrained(request: Request, seed: int) -> RunConfig:
    return override(recipes.build(PRETRAINING, method=BASE, scale=request.scale, seed=seed), request.changes)


def _runs(
    request: Request, entry: Entry, part: Part, settings: Sequence[Setting], seeds: Sequence[int], order: int
) -> Iterator[TransferRun]:
    """Runs of an entry, each from the weights of its seed where these are there."""
    for setting in settings:
        for seed in seeds:
            config = override(entry.config(setting, scale=request.scale, seed=seed), request.changes)
            origin = None if entry.name == SCRATCH else _pretrained(request, seed)
            if origin is not None:
                folder = RunFolder.of(origin, request.runs)
                if folder.summary() is None:
                    continue
                config = override(config, [f"model.options.weights={folder.path}"])
            yield TransferRun(
                name=entry.name,
                part=part,
                setting=setting,
                config=config,
                order=order,
                fixed=entry.fixed,
                pretrained=origin,
            )


def _chosen(request: Request, trials: Sequence[TransferRun], *, expected: int) -> Setting | None:
    if len(trials) < expected:
        return None
    choice = choose_among(((run.setting, run.config) for run in trials), finished_in(request.runs))
    return None if choice is None else choice.setting


def export(request: Request, folder: Path) -> list[Record]:
    """Add what is finished to the records in a folder, and return all of them."""
    found = [record for run in transfer_runs(request) if (record := run.record(request.runs))]
    every = records.merged(records.read(folder), found)
    records.write(every, folder)
    return every
