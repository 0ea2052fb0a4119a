"""Runs that are repetitions of each other, and a name that tells groups apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from lesam.lab.config.optimizer import methods, title
from lesam.lab.config.run import RunConfig, identity
from lesam.lab.runs.folder import Row, RunFolder

_ABSENT = object()
LOST = "‡"
"""Stands behind figures of which a run diverged."""
NOT_SETTINGS = ("recipe", "scale", "seed", "data.options.seed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Runs that differ in nothing but the seed."""

    config: RunConfig
    label: str
    """The method, and what tells it from other groups of the same method in the same recipe and scale."""
    place: str
    """Recipe and scale, where the groups at hand come from several; else empty."""
    runs: tuple[RunFolder, ...]
    duplicates: tuple[RunFolder, ...] = ()
    """Folders of a run that another folder among the runs is as well: no further repetitions."""

    @property
    def title(self) -> str:
        """The label, the place where it needs one, and a mark where runs diverged."""
        return (f"{self.label}, {self.place}" if self.place else self.label) + self.mark

    @property
    def diverged(self) -> tuple[RunFolder, ...]:
        """Those of the runs that ended without a finite loss."""
        return tuple(run for run in self.runs if has_diverged(run.summary()))

    @property
    def mark(self) -> str:
        """How many runs diverged, to be written behind the label; empty where none did."""
        return f" ({len(self.diverged)} of {len(self.runs)} diverged)" if self.diverged else ""

    @property
    def finished(self) -> tuple[RunFolder, ...]:
        """Those of the runs that reached their end, with a test accuracy there."""
        summaries = [(run, run.summary()) for run in self.runs]
        return tuple(run for run, summary in summaries if summary and summary["last"].get("test_accuracy") is not None)

    @property
    def unfinished(self) -> tuple[RunFolder, ...]:
        """The others, which tables leave out."""
        finished = self.finished
        return tuple(run for run in self.runs if run not in finished)

    def rows(self) -> list[list[Row]]:
        """The epochs of each run."""
        return [run.metrics() for run in self.runs]


ABSENCES: dict[str, tuple[Any, str]] = {
    "optimizer.rho_max": (None, "no cap"),
    "schedule.budget_anneal_start": (None, "not annealed"),
    "schedule.budget_warmup": (0, "no warm-up"),
}
"""The value with which a setting is switched off, and what it is called in a legend then."""
PRESENCES = {"schedule.budget_anneal_start": "annealed from", "schedule.budget_warmup": "warm-up"}
"""What comes before its value elsewhere, for those that need more than their name."""


def has_diverged(summary: Mapping[str, Any] | None) -> bool:
    """Whether a finished run ended without a finite loss; summaries without ``diverged_at`` tell by their last row.

    >>> has_diverged({"last": {"train_loss": None, "perturbed_loss": None, "test_loss": None}})
    True
    """
    if summary is None:
        return False
    seen = [summary["last"][name] for name in ("train_loss", "perturbed_loss") if name in summary["last"]]
    return summary.get("diverged_at") is not None or (bool(seen) and all(value is None for value in seen))


def group(runs: Iterable[RunFolder]) -> list[Group]:
    """Put repetitions together, in the order in which methods are listed; labels say what differs.

    Of several folders of the same run, as copies are, one counts: the first that is finished, or the first.
    """
    cells: dict[str, list[tuple[RunConfig, RunFolder]]] = {}
    for run in runs:
        config = run.config()
        cells.setdefault(_cell(config), []).append((config, run))
    members = sorted(cells.values(), key=lambda cell: _order(cell[0][0]))
    configs = [cell[0][0] for cell in members]
    places = {(config.recipe, config.scale) for config in configs}
    found = []
    for config, label, cell in zip(configs, _labels(configs), members, strict=True):
        runs_once = _once(cell)
        found.append(
            Group(
                config=config,
                label=label,
                place=f"{config.recipe} {config.scale}" if len(places) > 1 else "",
                runs=runs_once,
                duplicates=tuple(run for _, run in cell if run not in runs_once),
            )
        )
    return found


def remarks(groups: Iterable[Group]) -> list[str]:
    """Sentences about the folders that a table or figure does not count: copies of another one, unfinished runs."""
    copies: list[str] = []
    unfinished: list[str] = []
    untested: list[str] = []
    for each in groups:
        copies += [str(run.path) for run in each.duplicates]
        for run in each.unfinished:
            (unfinished if run.summary() is None else untested).append(str(run.path))
    said = []
    if copies:
        said.append(f"Counted once, the same run (setting and seed) as another folder: {', '.join(copies)}.")
    if unfinished:
        said.append(f"Not finished and left out: {', '.join(unfinished)}.")
    if untested:
        said.append(f"Finished without a test accuracy and left out: {', '.join(untested)}.")
    return said


def repetition(config: RunConfig) -> tuple[int, str]:
    """What tells a run from others of its group: its seed, and as text those of its data and of its weights."""
    own = [config.data.options.get("seed")]
    if config.model.weights_cell is not None:
        own.append(config.model.options["weights"])
    return config.seed, " ".join(str(value) for value in own if value is not None)


def settings(config: RunConfig) -> dict[str, Any]:
    """All settings that make a run what it is, apart from its seeds, by dotted path."""
    flat = _flatten(identity(config))
    if config.model.weights_cell is not None:
        flat["model.options.weights"] = config.model.weights_cell
    return {path: value for path, value in flat.items() if path not in NOT_SETTINGS}


def _once(cell: Sequence[tuple[RunConfig, RunFolder]]) -> tuple[RunFolder, ...]:
    """One folder for each run: the first that is finished, else the first."""
    chosen: dict[str, RunFolder] = {}
    for config, run in cell:
        known = chosen.get(config.fingerprint)
        if known is None or (known.summary() is None and run.summary() is not None):
            chosen[config.fingerprint] = run
    return tuple(chosen.values())


def _cell(config: RunConfig) -> str:
    return repr((config.recipe, config.scale, sorted(settings(config).items(), key=lambda item: item[0])))


def _order(config: RunConfig) -> tuple[Any, ...]:
    return (
        config.recipe,
        config.scale,
        methods().index(config.method),
        [(path, repr(value)) for path, value in sorted(settings(config).items())],
    )


def _varying(configs: Sequence[RunConfig]) -> dict[tuple[str, str, str], set[str]]:
    """By recipe, scale and method, the settings in which groups of these differ.

    Asked once for all groups: a sweep has a thousand of them, and each has a thousand rivals.
    """
    rivals: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for config in configs:
        rivals.setdefault((config.recipe, config.scale, config.method), []).append(settings(config))
    return {
        of: {
            path
            # A field that a rival does not have is at its default there.
            for path in dict.fromkeys(path for mine in every for path in mine)
            # As groups are told apart: 1000 and 1000.0 are two settings.
            if len({repr(mine.get(path, _ABSENT)) for mine in every}) > 1
        }
        for of, every in rivals.items()
    }


def _labels(configs: Sequence[RunConfig]) -> list[str]:
    """A label for each group, no two alike in the same recipe and scale: tables and figures are keyed by them."""
    varying = _varying(configs)
    of = [varying[config.recipe, config.scale, config.method] for config in configs]
    labels = [_label(config, paths) for config, paths in zip(configs, of, strict=True)]
    places = [f"{config.recipe} {config.scale}" for config in configs]
    found = Counter(zip(labels, places, strict=True))
    given: set[tuple[str, str]] = set()
    for index, (label, place) in enumerate(zip(labels, places, strict=True)):
        if found[label, place] > 1:  # the number 32 and the text "32" read alike
            label = _label(configs[index], of[index], value_text=repr)
        numbered = (f"{label} #{number}" for number in count(2))
        labels[index] = next(each for each in chain([label], numbered) if (each, place) not in given)
        given.add((labels[index], place))
    return labels


def _label(config: RunConfig, varying: set[str], value_text: Callable[[Any], str] = str) -> str:
    """The method, and those settings in which groups of the same method and recipe differ."""
    mine = settings(config)
    differing = [path for path in mine if path in varying]
    name, leaves = title(config.method), [path.rpartition(".")[2] for path in differing]
    notes = ", ".join(
        spoken(path, mine[path], short=leaves.count(path.rpartition(".")[2]) == 1, value_text=value_text)
        for path in differing
    )
    return f"{name} ({notes})" if notes else name


def spoken(path: str, value: Any, *, short: bool = True, value_text: Callable[[Any], str] = str) -> str:
    """A setting in the words of a legend.

    >>> spoken("optimizer.sigma", 0.1), spoken("optimizer.rho_max", None), spoken("schedule.budget_anneal_start", 48)
    ('sigma=0.1', 'no cap', 'annealed from 48')
    """
    if path in ABSENCES and value == ABSENCES[path][0]:
        return ABSENCES[path][1]
    if path in PRESENCES:
        return f"{PRESENCES[path]} {value_text(value)}"
    return f"{path.rpartition('.')[2] if short else path}={value_text(value)}"


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
