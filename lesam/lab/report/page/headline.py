"""The outcome in words, made from the numbers: who beats whom by how much, and what cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence

from lesam.lab.report.page.comparison import Contest, Pair
from lesam.lab.report.page.entries import Entry

MOST_NAMES = 6


def headline(entries: Sequence[Entry], contests: Sequence[Contest]) -> list[str]:
    """Sentences about every contest, and about runs that did not end well."""
    several = len(contests) > 1
    said = [sentence for contest in contests for sentence in _contest(contest, named=several)]
    if not contests:
        said.append("No run is finished yet.")
    lost = [f"{entry.name}: {len(entry.of_status('diverged'))}" for entry in entries if entry.of_status("diverged")]
    if lost:
        said.append(f"Runs that diverged count with the accuracy they ended with ({_listed(lost)}).")
    waiting = [
        f"{entry.name}: {len(entry.of_status('unfinished'))}" for entry in entries if entry.of_status("unfinished")
    ]
    if waiting:
        said.append(f"Unfinished runs are drawn and not counted ({_listed(waiting)}).")
    return said


def p_text(p: float) -> str:
    """A p-value with two digits.

    >>> p_text(0.0123), p_text(0.00001), p_text(0.5)
    ('p = 0.012', 'p < 0.001', 'p = 0.50')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.2f}" if p >= 0.1 else f"p = {p:.2g}"


def _contest(contest: Contest, *, named: bool) -> list[str]:
    where = f"{contest.place}: " if named else ""
    best = contest.entries[0]
    accuracy = best.accuracy
    if accuracy is None:
        return []
    if len(contest.entries) == 1:
        return [f"{where}{best.label} reaches {accuracy.text()} % test accuracy over {_seeds(accuracy.n)}."]
    mine = [pair for pair in contest.pairs if best in (pair.better, pair.other)]
    beaten = [pair for pair in mine if pair.shown and pair.better is best]
    lost = [pair for pair in mine if pair.shown and pair.other is best]
    close = [pair for pair in mine if pair.verdict == "not shown"]
    constant = [pair for pair in mine if pair.verdict == "equal differences: no test"]
    alone = [pair for pair in mine if pair.verdict == "fewer than three common seeds"]
    said = []
    if beaten:
        said.append(f"{where}{best.label} beats " + _listed([_margin(pair) for pair in beaten], "; ") + ".")
    for pair in lost:
        said.append(
            f"{where}{pair.better.label} beats {_margin(pair)} on the seeds that both have, though {best.label} has "
            f"the higher mean over all its own ({accuracy.text()} %)."
        )
    if close:
        names = _listed([pair.rival(best).label for pair in close])
        start = "No" if said else f"{where}{best.label} has the highest mean ({accuracy.text()} %). No"
        said.append(f"{start} difference can be shown between {best.label} and {names}.")
    if constant:
        names = _listed([pair.rival(best).label for pair in constant])
        start = "" if said else f"{where}{best.label} has the highest mean ({accuracy.text()} %). "
        said.append(f"{start}{best.label} and {names} differ by the same on all seeds, which no test can judge.")
    if alone:
        names = _listed([pair.rival(best).label for pair in alone])
        start = "" if said else f"{where}{best.label} has the highest mean ({accuracy.text()} %). "
        said.append(f"{start}{best.label} and {names} share fewer than three seeds and are not compared.")
    return said


def _margin(pair: Pair) -> str:
    difference = pair.difference
    if difference is None or pair.p is None:
        return pair.other.label
    points, half = difference.spread.mean * 100, difference.half_width * 100
    return (
        f"{pair.other.label} by {points:.2f} ± {half:.2f} points over {_seeds(difference.spread.n)} ({p_text(pair.p)})"
    )


def _seeds(n: int) -> str:
    return "one seed" if n == 1 else f"{n} seeds"


def _listed(names: Sequence[str], mark: str = ", ") -> str:
    """Names one after the other, the first few of many.

    >>> _listed(["a", "b"]), _listed([str(n) for n in range(9)])
    ('a, b', '0, 1, 2, 3, 4, 5 and 3 more')
    """
    more = len(names) - MOST_NAMES
    return mark.join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
