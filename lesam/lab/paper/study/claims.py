"""The claims that the study judges, each a difference between two entries, or between an entry and a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lesam.lab.config.optimizer import title
from lesam.lab.paper.study.entries import Ranges
from lesam.lab.paper.study.groups import BOTH, NEAR, NOISY, PARTS, STUDY, groups, labels_of, local_name
from lesam.lab.paper.study.quantities import ACCURACY, FLATNESS, Scores, under_attack
from lesam.lab.paper.study.verdicts import Difference, Verdict, holm


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """``ours`` has more of a quantity than ``theirs``; with ``margin``, at most that share of SAM's gain less."""

    text: str
    ours: str
    theirs: str | float
    margin: float = 0.0
    quantity: str = ACCURACY


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A claim and what the study says of it."""

    claim: Claim
    difference: Difference
    p: float
    """Corrected by Holm's rule over all claims about the stage."""
    verdict: Verdict
    deciding_n: int | None


def claims(stage: Ranges) -> list[Claim]:
    """All claims about a stage whose entries compete there, those of the paper first."""
    competing = set(STUDY.names(stage, "small"))
    found = [claim for claim in _accuracies(stage) if {claim.ours, claim.theirs} <= competing]
    measured = any(one.part == "track" for group in groups(stage, "small") for one in group.followers)
    return [*found, *_attacks(stage), *([*_flatness(stage), *_dynamics()] if measured else [])]


def _accuracies(stage: Ranges) -> list[Claim]:
    sam, gsam, lesam, plus, base = (title(method) for method in ("sam", "gsam", "lesam", "lesamplus", stage.base))
    budgets = (lesam, plus)
    rivals = [title(method) for method in stage.first if not method.startswith("lesam")]
    longer = f"{base}, twice the epochs"
    published = f"{lesam}, annealed"  # the paper's schedule: no warm-up
    return [
        *(
            Claim(text=f"{ours} beats {theirs}", ours=ours, theirs=theirs)
            for ours, theirs in ((sam, base), (lesam, base))
        ),
        *(Claim(text=f"{lesam} beats {name}", ours=lesam, theirs=name) for name in rivals),
        *(
            Claim(text=f"{lesam} with the paper's schedule, annealed alone, beats {name}", ours=published, theirs=name)
            for name in (sam, base)
        ),
        *(Claim(text=f"{plus} beats {name}", ours=plus, theirs=name) for name in (sam, lesam)),
        *(Claim(text=f"{name} beats {longer}", ours=name, theirs=longer) for name in (sam, lesam)),
        *(
            Claim(
                text=f"the budget helps: {lesam} beats {name} with the same warm-up and annealing",
                ours=lesam,
                theirs=f"{name}, {BOTH}",
            )
            for name in (sam, gsam)
        ),
        *(
            Claim(text=f"annealing helps {name}", ours=name, theirs=f"{name}, warmed up")
            for name in budgets  # as they compete: warmed up
        ),
        *(
            Claim(
                text=f"annealing helps {name} without a warm-up", ours=f"{name}, annealed", theirs=f"{name}, constant"
            )
            for name in budgets
        ),
        *(Claim(text=f"annealing helps {name}", ours=f"{name}, annealed", theirs=name) for name in (sam, gsam)),
        *(Claim(text=f"warming up helps {name}", ours=name, theirs=f"{name}, annealed") for name in budgets),
        *(Claim(text=f"warming up helps {name}", ours=f"{name}, warmed up", theirs=name) for name in (sam, gsam)),
        Claim(text=f"a cap helps {lesam}", ours=f"{lesam}, nearly always at the cap", theirs=lesam),
        *(
            Claim(
                text=f"{factor:.2g} times its budget costs {lesam} at most a tenth of {sam}'s gain",
                ours=f"{lesam}, {factor:.2g} times the budget",
                theirs=lesam,
                margin=0.1,
            )
            for factor in NEAR
        ),
        *(
            Claim(text=f"a perturbation for each of {parts} parts of the batch helps {name}", ours=local, theirs=name)
            for parts in PARTS
            for name, local in ((name, local_name(name, parts)) for name in (sam, lesam))
        ),
        *(
            Claim(
                text=f"a late switch loses at most a fifth of {sam}'s gain to {name} throughout",
                ours=f"{name}, in the last quarter only",
                theirs=name,
                margin=0.2,
            )
            for name in (sam, lesam)
        ),
        *(
            Claim(text=f"{ours} beats {theirs} under wrong labels", ours=f"{ours}{NOISY}", theirs=f"{theirs}{NOISY}")
            for ours, theirs in ((sam, base), (lesam, base), (lesam, sam), (plus, base), (plus, lesam))
        ),
    ]


def _attacks(stage: Ranges) -> list[Claim]:
    sam, lesam, base = (title(method) for method in ("sam", "lesam", stage.base))
    return [
        Claim(text=f"{ours} beats {theirs} under PGD, {name}", ours=ours, theirs=theirs, quantity=under_attack(name))
        for name in stage.attacks
        for ours, theirs in ((sam, base), (lesam, base), (lesam, sam))
    ]


def _flatness(stage: Ranges) -> list[Claim]:
    sam, lesam, base = (title(method) for method in ("sam", "lesam", stage.base))
    return [
        Claim(
            text=f"{ours} is flatter than {theirs}: {FLATNESS[column]} {when}",
            ours=ours,
            theirs=theirs,
            quantity=f"{column} {when}",
        )
        for ours, theirs in ((sam, base), (lesam, base), (lesam, sam), (lesam, f"{sam}, {BOTH}"))
        for column in FLATNESS
        for when in ("at equal epoch", "at equal loss")
    ]


def _dynamics() -> list[Claim]:
    sam, lesam = title("sam"), title("lesam")
    published = f"{lesam}, annealed"  # the paper's schedule: no warm-up
    return [
        Claim(
            text=f"the first-order term is most of {sam}'s rise early in training",
            ours=sam,
            theirs=50.0,
            quantity="first-order share, early",
        ),
        Claim(
            text=f"curvature is most of {sam}'s rise late in training",
            ours=sam,
            theirs=50.0,
            quantity="curvature share, late",
        ),
        Claim(
            text=f"curvature is most of {lesam}'s rise early in training",
            ours=published,
            theirs=50.0,
            quantity="curvature share, early",
        ),
        Claim(text=f"{lesam}'s radius falls at first", ours=published, theirs=0.0, quantity="fall of the radius"),
        Claim(text=f"{lesam}'s radius rises again later", ours=published, theirs=0.0, quantity="rise of the radius"),
    ]


def judged(stage: Ranges, found: Mapping[str, Scores]) -> list[Judged]:
    """Verdicts on the claims whose entries have run, corrected for the number of all claims about the stage.

    Args:
        stage: Whose claims.
        found: The quantities of its records.
    """
    every, found_differences = claims(stage), []
    for claim in every:
        scores = found.get(claim.quantity, {})
        gain = _gain(stage, scores, labels_of(claim.ours))
        tolerance = claim.margin * gain
        ours = scores.get(claim.ours, {})
        theirs = scores.get(claim.theirs, {}) if isinstance(claim.theirs, str) else dict.fromkeys(ours, claim.theirs)
        difference = Difference.between(ours, theirs, comparisons=len(every))
        against = Difference.between(ours, {seed: score - tolerance for seed, score in theirs.items()})
        if difference is not None and against is not None:
            found_differences.append((claim, difference, against.p, gain, tolerance))
    # Claims that are still open count as if nothing could be shown, so that no p-value moves when they run.
    waiting = [1.0] * (len(every) - len(found_differences))
    corrected = holm([*(p for _, _, p, _, _ in found_differences), *waiting])
    return [
        Judged(
            claim=claim,
            difference=difference,
            p=p,
            verdict=difference.verdict(gain, tolerance),
            deciding_n=difference.deciding_n(gain, tolerance),
        )
        for (claim, difference, _, gain, tolerance), p in zip(found_differences, corrected, strict=False)
    ]


def _gain(stage: Ranges, scores: Scores, labels: str) -> float:
    """SAM's over the base on the same labels; 0 where it gains nothing, and for what the base does not have."""
    sam, base = (scores.get(title(method) + labels, {}) for method in ("sam", stage.base))
    found = Difference.between(sam, base)
    return 0.0 if found is None else max(0.0, found.spread.mean)


def open_claims(stage: Ranges, decided: Sequence[Judged]) -> list[Claim]:
    """Claims that are not among the judged ones: their entries have not run yet."""
    known = {one.claim for one in decided}
    return [claim for claim in claims(stage) if claim not in known]
