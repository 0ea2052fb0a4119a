"""The study as tables: results, verdicts and searches of a stage, all from its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lesam.lab.config.optimizer import title
from lesam.lab.paper.study.claims import Judged, judged, open_claims
from lesam.lab.paper.study.contest import TRACKED_SEEDS, Contest
from lesam.lab.paper.study.entries import MLP, STAGES, Ranges
from lesam.lab.paper.study.groups import STUDY, labels_of
from lesam.lab.paper.study.quantities import ACCURACY, FLATNESS_QUANTITIES, Scores, quantities
from lesam.lab.paper.study.records import Record
from lesam.lab.paper.study.scan import budget_lines, budget_table
from lesam.lab.paper.study.spent import spent
from lesam.lab.paper.study.verdicts import Difference
from lesam.lab.runs.statistics import Spread
from lesam.lab.sweeps.tuning import Choice, Setting, words

Table = list[tuple[str, ...]]
"""Rows of cells, headings first."""

SAM = title("sam")

_RESULTS = (
    "entry",
    "passes",
    "chosen on validation",
    "n",
    "test accuracy (%)",
    "to the base",
    f"to {SAM}",
    "NLL",
    "calibration error",
)

NEWCOMERS = ("gsam", "msam", "lesam", "lesamplus")
"""Methods of the summary besides SAM."""

EDGE = "*"
"""Behind a chosen setting with the smallest or largest of the numbers tried."""


@dataclass(frozen=True, slots=True)
class StageTables:
    """Everything a contest says about one stage."""

    stage: Ranges
    records: Sequence[Record]
    scale: str = "small"
    contest: Contest = STUDY

    @property
    def scores(self) -> Scores:
        """Test accuracies by entry and seed."""
        return quantities(self._own).get(ACCURACY, {})

    def results(self) -> Table:
        """Accuracy of every entry, and its differences to the base and to SAM with plain 95 % intervals."""
        rows: Table = [_RESULTS]
        scores = self.scores
        for name, runs in self.repetitions().items():
            bars = (bar + labels_of(name) for bar in (title(self.stage.base), SAM))
            rows.append(
                (
                    name,
                    f"{Spread.of([one.last.get('passes') or 0 for one in runs]).mean:.3g}",
                    chosen_words(self, runs[0]),
                    str(len(runs)),
                    accuracy_words(runs),
                    *("" if name == bar else difference_words(scores[name], scores.get(bar, {})) for bar in bars),
                    _mean(runs, "test_nll", "{:.3f}"),
                    _mean(runs, "test_calibration_error", "{:.3f}"),
                )
            )
        return rows

    def summary(self) -> Table:
        """Accuracies of the entries that a newcomer asks for first."""
        base = title(self.stage.base)
        asked = (base, f"{base}, twice the epochs", SAM, f"{SAM}, warmed up and annealed", *map(title, NEWCOMERS))
        kept = (0, 1, 3, 4, 5)
        head, *body = self.results()
        return [tuple(row[place] for place in kept) for row in (head, *(row for row in body if row[0] in asked))]

    def verdicts(self) -> Table:
        """Every claim with its corrected interval and verdict."""
        rows: Table = [("claim", "difference (points)", "corrected 95 % interval", "p", "n", "verdict")]
        decided = judged(self.stage, quantities(self._own))
        rows += [_verdict(one, self._planned(one)) for one in decided]
        rows += [(claim.text, "", "", "", "0", "not run yet") for claim in open_claims(self.stage, decided)]
        return rows

    def searches(self) -> Table:
        """Mean validation accuracy of every trial, smallest radius or budget first."""
        rows: Table = [("entry", "setting: mean validation accuracy (%) over two seeds")]
        for name, by_setting in self.searched().items():
            cells = (f"{words(setting)}: {Spread.of(of).mean:.2f}" for setting, of in by_setting.items())
            rows.append((name, "; ".join(cells)))
        return rows

    def _planned(self, one: Judged) -> int:
        """Seeds that a claim is to be judged on."""
        return len(TRACKED_SEEDS) if one.claim.quantity in FLATNESS_QUANTITIES else self.stage.repeats

    @property
    def _own(self) -> list[Record]:
        return [one for one in self.records if one.recipe == self.stage.recipe]

    def of(self, part: str) -> list[Record]:
        """The stage's records of a part."""
        return [one for one in self._own if one.part == part]

    def repetitions(self) -> dict[str, list[Record]]:
        """Those of each entry that has any, in the order of the contest."""
        found: dict[str, list[Record]] = {name: [] for name in self.contest.names(self.stage, self.scale)}
        for one in self.of("repeat"):
            if one.entry in found:
                found[one.entry].append(one)
        return {name: runs for name, runs in found.items() if runs}

    def searched(self) -> dict[str, dict[Setting, list[float]]]:
        """Validation accuracies of every trial, by entry and setting."""
        found: dict[str, dict[Setting, list[float]]] = {}
        for group in self.contest.groups(self.stage, self.scale):
            for entry in group.entries:
                for setting in entry.settings:
                    of = [o.score for o in self.of("search") if (o.entry, o.setting) == (entry.name, setting)]
                    if of:
                        found.setdefault(entry.name, {})[setting] = of
        return found


KINDS: dict[str, Callable[[StageTables], Table]] = {
    "test accuracy": StageTables.results,
    "verdicts": StageTables.verdicts,
    "searches": StageTables.searches,
}
"""Tables of every stage, by the second half of their heading."""

FIRST: dict[str, Callable[[StageTables], Table]] = {
    "summary": StageTables.summary,
    "budgets": lambda of: budget_table(budget_lines(of.stage, of.records)),
}
"""Tables of the first stage alone."""


def tables(records: Sequence[Record], scale: str = "small") -> dict[str, Table]:
    """All tables of the study by heading; one that nothing has run for has no rows."""
    found: dict[str, Table] = {"study: spent": spent(STUDY, records, scale)}
    for stage in STAGES:
        of, started = StageTables(stage, records, scale), any(one.recipe == stage.recipe for one in records)
        kinds = KINDS | FIRST if stage is MLP else KINDS
        found |= {f"{stage.recipe}: {kind}": make(of) if started else [] for kind, make in kinds.items()}
    return {heading: table if len(table) > 1 else [] for heading, table in found.items()}


def _verdict(one: Judged, planned: int) -> tuple[str, ...]:
    low, high = one.difference.interval
    verdict: str = one.verdict
    if verdict == "undecided":
        verdict += f", n = {one.deciding_n} would decide" if one.deciding_n else ", and more seeds would not help"
    n = one.difference.spread.n
    if n < planned:
        verdict = f"so far ({n} of {planned}): {verdict}"
    return (
        one.claim.text,
        f"{one.difference.spread.mean:+.2f}",
        f"{low:+.2f} to {high:+.2f}",
        f"{one.p:.2g}",
        str(n),
        verdict,
    )


def accuracy_words(runs: Sequence[Record]) -> str:
    """Mean and standard deviation of test accuracies in percent, and how many runs diverged, which count as 0."""
    lost = sum(one.diverged for one in runs)
    return Spread.of([one.score for one in runs]).text(1.0) + (f" ({lost} diverged)" if lost else "")


def chosen_words(of: StageTables, run: Record) -> str:
    """The setting that was chosen for a repetition, with a mark where it is the smallest or largest of those tried."""
    tried = {setting: tuple(values) for setting, values in of.searched().get(run.entry, {}).items()}
    return words(run.setting) + (EDGE if Choice(setting=run.setting, scores=tried).at_edge else "")


def _mean(runs: Sequence[Record], name: str, form: str) -> str:
    values = [one.last.get(name) for one in runs]
    known = [value for value in values if value is not None]
    return form.format(Spread.of(known).mean) if known and len(known) == len(values) else ""


def difference_words(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """A paired difference with its plain 95 % interval; empty where fewer than two seeds are in both."""
    difference = Difference.between(ours, theirs)
    if difference is None:
        return ""
    low, high = difference.interval
    return f"{difference.spread.mean:+.2f} ({low:+.2f} to {high:+.2f})"
