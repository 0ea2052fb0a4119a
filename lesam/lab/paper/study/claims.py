"""The claims that the study judges, each a difference between two entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lesam.lab.config.optimizer import title
from lesam.lab.paper.study.entries import NOISY, Ranges, groups
from lesam.lab.paper.study.verdicts import Difference, Verdict, holm

Scores = Mapping[str, Mapping[int, float]]
"""Test accuracy in percent by entry and seed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """``ours`` beats ``theirs``; with ``margin``, is not worse by that share of SAM's gain."""

    text: str
    ours: str
    theirs: str
    margin: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """A claim and what the study says of it."""

    claim: Claim
    difference: Difference
    p: float
    """Corrected by Holm's rule over the claims of the stage."""
    verdict: Verdict
    deciding_n: int | None


def claims(stage: Ranges) -> list[Claim]:
    """All claims about a stage whose entries compete there, those of the paper first."""
    sam, lesam, plus, base = (title(method) for method in ("sam", "lesam", "lesamplus", stage.base))
    rivals = [title(method) for method in stage.first if not method.startswith("lesam")]
    longer = f"{base}, twice the epochs"
    found = [
        *(
            Claim(text=f"{ours} beats {theirs}", ours=ours, theirs=theirs)
            for ours, theirs in ((sam, base), (lesam, base))
        ),
        *(Claim(text=f"{lesam} beats {name}", ours=lesam, theirs=name) for name in rivals),
        *(Claim(text=f"{plus} beats {name}", ours=plus, theirs=name) for name in (sam, lesam)),
        *(Claim(text=f"{name} beats {longer}", ours=name, theirs=longer) for name in (sam, lesam)),
        Claim(
            text=f"the budget helps: {lesam} beats {sam} with the same warm-up and annealing",
            ours=lesam,
            theirs=f"{sam}, warmed up and annealed",
        ),
        Claim(text=f"annealing helps {lesam}", ours=lesam, theirs=f"{lesam}, warmed up"),
        Claim(text=f"annealing helps {sam}", ours=f"{sam}, annealed", theirs=sam),
        Claim(text=f"warming up helps {lesam}", ours=lesam, theirs=f"{lesam}, annealed"),
        Claim(text=f"a cap helps {lesam}", ours=f"{lesam}, nearly always at the cap", theirs=lesam),
        *(
            Claim(text=f"a perturbation for each tenth of the batch helps {name}", ours=local, theirs=name)
            for name, local in ((name, f"{name}, local, m = B/10") for name in (sam, lesam))
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
            for ours, theirs in ((sam, base), (lesam, base), (lesam, sam))
        ),
    ]
    competing = {entry.name for group in groups(stage, "small") for entry in group}
    return [claim for claim in found if {claim.ours, claim.theirs} <= competing]


def judged(stage: Ranges, scores: Scores) -> list[Judged]:
    """Verdicts on the claims whose entries have run, corrected for the number of all claims about the stage."""
    every = claims(stage)
    sam = Difference.between(scores.get(title("sam"), {}), scores.get(title(stage.base), {}))
    if sam is None:
        return []
    gain, found = sam.spread.mean, []
    for claim in every:
        shifted = {seed: score + claim.margin * gain for seed, score in scores.get(claim.ours, {}).items()}
        difference = Difference.between(shifted, scores.get(claim.theirs, {}), comparisons=len(every))
        if difference is not None:
            found.append((claim, difference))
    corrected = holm([difference.p for _, difference in found])
    return [
        Judged(
            claim=claim,
            difference=difference,
            p=p,
            verdict=difference.verdict(gain),
            deciding_n=difference.deciding_n(gain),
        )
        for (claim, difference), p in zip(found, corrected, strict=True)
    ]


def open_claims(stage: Ranges, decided: Sequence[Judged]) -> list[Claim]:
    """Claims that are not among the judged ones: their entries have not run yet."""
    known = {one.claim for one in decided}
    return [claim for claim in claims(stage) if claim not in known]
