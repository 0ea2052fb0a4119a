"""The claims that the study judges, each a difference between two entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lesam.lab.config.optimizer import title
from lesam.lab.paper.study.entries import Ranges, groups
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
    base, rivals = title(stage.base), [title(method) for method in stage.first if not method.startswith("lesam")]
    found = [
        Claim(text="SAM beats the base", ours="SAM", theirs=base),
        Claim(text="LE-SAM beats the base", ours="LE-SAM", theirs=base),
        *(Claim(text=f"LE-SAM beats {name}", ours="LE-SAM", theirs=name) for name in rivals),
        Claim(text="LE-SAM+ beats SAM", ours="LE-SAM+", theirs="SAM"),
        Claim(text="LE-SAM+ beats LE-SAM", ours="LE-SAM+", theirs="LE-SAM"),
        Claim(text="SAM beats the base at twice the epochs", ours="SAM", theirs=f"{base}, twice the epochs"),
        Claim(text="LE-SAM beats the base at twice the epochs", ours="LE-SAM", theirs=f"{base}, twice the epochs"),
        Claim(
            text="the budget helps: LE-SAM beats SAM with the same warm-up and annealing",
            ours="LE-SAM",
            theirs="SAM, warmed up and annealed",
        ),
        Claim(text="annealing helps LE-SAM", ours="LE-SAM", theirs="LE-SAM, warmed up"),
        Claim(text="annealing helps SAM", ours="SAM, annealed", theirs="SAM"),
        Claim(text="warming up helps LE-SAM", ours="LE-SAM", theirs="LE-SAM, annealed"),
        Claim(text="a cap helps LE-SAM", ours="LE-SAM, nearly always at the cap", theirs="LE-SAM"),
        *(
            Claim(text=f"{name} helps more with a perturbation for each tenth of the batch", ours=local, theirs=name)
            for name, local in (("SAM", "SAM, local, m = B/10"), ("LE-SAM", "LE-SAM, local, m = B/10"))
        ),
        Claim(
            text="a late switch keeps SAM's gain (four fifths of it)",
            ours="SAM, in the last quarter only",
            theirs="SAM",
            margin=0.2,
        ),
        Claim(
            text="a late switch keeps LE-SAM's gain (four fifths of SAM's)",
            ours="LE-SAM, in the last quarter only",
            theirs="LE-SAM",
            margin=0.2,
        ),
        Claim(
            text="LE-SAM beats SAM under wrong labels",
            ours="LE-SAM, 20 % wrong labels",
            theirs="SAM, 20 % wrong labels",
        ),
        Claim(
            text="SAM beats the base under wrong labels",
            ours="SAM, 20 % wrong labels",
            theirs=f"{base}, 20 % wrong labels",
        ),
    ]
    competing = {entry.name for group in groups(stage, "small") for entry in group}
    return [claim for claim in found if {claim.ours, claim.theirs} <= competing]


def judged(stage: Ranges, scores: Scores) -> list[Judged]:
    """Verdicts on the claims whose entries have run, corrected for the number of all claims about the stage."""
    every = claims(stage)
    sam = Difference.between(scores.get("SAM", {}), scores.get(title(stage.base), {}))
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


def open_claims(stage: Ranges, scores: Scores) -> Sequence[Claim]:
    """Claims whose entries have not run yet."""
    known = {one.claim for one in judged(stage, scores)}
    return [claim for claim in claims(stage) if claim not in known]
