"""Who competes for the price: methods of one pass a step to three, each searched over five settings, on five stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lesam.lab import recipes
from lesam.lab.config.optimizer import title
from lesam.lab.paper.study import entries
from lesam.lab.paper.study.contest import Contest, Group
from lesam.lab.paper.study.entries import Ranges, doublings, rates
from lesam.lab.sweeps.tuning import Entry, Setting

PARTIAL, ONE_PASS = OURS = ("partiallesam", "onepasslesam")
"""The methods that the contest is about; they are measured by LE-SAM of two passes."""

DECIDING = 20
"""Seeds of what the verdict is about where ten may not decide.

In pilots, and with the first ten seeds of the second stage, differences to LE-SAM had a standard deviation of 0.6
points, with which the interval of ten seeds is wider than a tenth of the gain.
"""

DECIDED: Mapping[str, tuple[str, ...]] = {"mnist1d-mlp": OURS, "cifar100-resnet18": (PARTIAL,)}
"""Stages where the base, LE-SAM and these methods have as many."""

EVERY = 4
"""Steps from one of two passes to the next."""

UNCAPPED: Setting = ("optimizer.rho_max=null",)
NORMS: Setting = ("optimizer.perturb=norms",)
NORM_LAYERS = ("digits", "cifar100-resnet18")
"""Stages whose networks have norm layers."""


@dataclass(frozen=True, slots=True)
class OnNormLayers:
    """How one of :data:`OURS` climbs norm layers alone, and which of five budgets its trials are of."""

    changes: Setting
    everything: slice
    """Two, for climbing everything."""
    norms: slice
    """Three, for the norm layers alone."""


ALONG_THE_PART: Setting = (*NORMS, "optimizer.weight=null")
"""Partial LE-SAM in norm layers without its average, which in pilots was worse there."""

ON_NORM_LAYERS: Mapping[str, OnNormLayers] = {
    # A part's pass costs two thirds where it computes the gradients of norm layers alone, so the part is larger at the
    # same price: 9 of 64 samples, 14 of 100.
    PARTIAL: OnNormLayers(
        (*ALONG_THE_PART, "optimizer.share=0.145", "optimizer.rho_max=2"), everything=slice(3, 5), norms=slice(2, 5)
    ),
    ONE_PASS: OnNormLayers(NORMS, everything=slice(2, 4), norms=slice(2, 5)),
}
"""Where a network has norm layers, five trials choose a budget and what is climbed."""

FALLING: Setting = ("optimizer.threshold=1", "optimizer.threshold_end=-1")
"""AE-SAM's threshold over training, as its authors have it."""

SCHEDULED: Mapping[str, float] = {"msam": 8, "s2sam": 2}
"""The smallest radius of a search where it is warmed up and annealed, in multiples of the smallest constant one.

SAM's best radius on MNIST-1D is four times as large with a warm-up: these put four times the best constant radius there
in the middle.
"""

DEARER = ("vasso", "wsam", "crsam")
"""Relatives that save nothing, at two passes and three."""

TOLD_APART = ("mnist1d-mlp", "digits")
"""Stages on which these compete too: runs take seconds, and LE-SAM's gain is large against the noise."""

LIKE: Mapping[str, str] = {
    **dict.fromkeys(("looksam", "aesam", *DEARER), "sam"),
    "emasam": "msam",
    **dict.fromkeys(OURS, "lesam"),
}
"""Methods that no stage of the study has, and those whose radii or budgets they are searched over."""


def _with_kin(stage: Ranges) -> Ranges:
    """A stage of the study with further methods, ten repetitions and no attacks."""
    first = {**stage.first, **{method: stage.first[kin] for method, kin in LIKE.items() if kin in stage.first}}
    return replace(stage, first=first, repeats=10, attacks=())


DIGITS = Ranges(
    recipe="digits",
    base="sgd",
    base_settings=rates(2.5e-2, decay=5e-4),
    first={"sam": 0.15, "esam": 0.075, "s2sam": 0.15, "msam": 0.25, "lesam": 0.0875},
    repeats=10,
)

CONVOLUTIONAL = _with_kin(replace(entries.CIFAR_CONV, first={**entries.CIFAR_CONV.first, "msam": 0.25}))

STAGES = (*map(_with_kin, (entries.MLP, entries.CNN, entries.CIFAR_MLP, DIGITS)), CONVOLUTIONAL)


def groups(stage: Ranges, scale: str) -> list[Group]:
    """The base, and all that is searched on top of it; few on the stage whose runs take minutes."""
    base, sam, lesam = stage.base_entry(), stage.entry("sam"), stage.entry("lesam")
    ours = tuple(_ours(stage, method) for method in OURS)
    if scale == "smoke":  # a look at the machinery
        base = replace(base, settings=base.settings[:2], fixed=stage.smoke)
        others = (*ours, _now_and_then(stage, "sam"), lesam)
        single = (replace(one, settings=one.settings[:1], fixed=(*one.fixed, *stage.smoke)) for one in others)
        return [Group(entries=(base,)), Group(entries=tuple(single))]
    alone = [entry for method in OURS for entry in _each_alone(stage, method)]
    if stage is CONVOLUTIONAL:
        return _judged(stage, base, ours, (*alone, stage.entry("msam"), sam), lesam)
    one_pass = alone + [stage.entry(method) for method in ("msam", "s2sam", "emasam")]
    one_pass += [_like_a_budget(stage, method, scale) for method in SCHEDULED]
    between = (
        _late(stage, scale),
        stage.entry("looksam"),
        _now_and_then(stage, "sam"),
        _now_and_then(stage, "lesam"),
        stage.entry("aesam", fixed=FALLING),
        stage.entry("esam"),
    )
    return _judged(stage, base, ours, (*one_pass, *between, *_dearer(stage), sam), lesam)


def _judged(
    stage: Ranges, base: Entry, ours: tuple[Entry, ...], others: tuple[Entry, ...], lesam: Entry
) -> list[Group]:
    """Those that the verdict is about, with as many seeds as that takes, and the others between them."""
    decided = DECIDED.get(stage.recipe, ())
    repeats = DECIDING if decided else None
    first = [Group(entries=(base,), repeats=repeats)]
    first += [Group(entries=(one,), repeats=repeats if one.method in decided else None) for one in ours]
    return [*first, Group(entries=others), Group(entries=(lesam,), repeats=repeats)]


def _ours(stage: Ranges, method: str) -> Entry:
    """Without a cap, as LE-SAM is on these stages; over five budgets, or fewer of each of two things to climb."""
    entry = stage.entry(method, fixed=UNCAPPED)
    if stage.recipe not in NORM_LAYERS:
        return entry
    budgets, on = entry.settings, ON_NORM_LAYERS[method]
    norms = ((*budget, *on.changes) for budget in budgets[on.norms])
    return replace(entry, settings=(*budgets[on.everything], *norms))


def _each_alone(stage: Ranges, method: str) -> list[Entry]:
    """What each of the two gives alone, over all five budgets, and what norm layers gave before they had a cap."""
    if stage.recipe not in NORM_LAYERS:
        return []
    norms = {"norm layers alone": ON_NORM_LAYERS[method].changes}
    if method == PARTIAL:
        norms["norm layers alone, a tenth, no cap"] = ALONG_THE_PART
    ways = {"everything": (), **norms}
    return [stage.entry(method, f"{title(method)}, {way}", (*UNCAPPED, *changes)) for way, changes in ways.items()]


def _dearer(stage: Ranges) -> list[Entry]:
    """Relatives of two passes and three, and both passes with norm layers alone climbed (SAM-ON)."""
    if stage.recipe not in TOLD_APART:
        return []
    alone = ("sam", "lesam") if stage.recipe in NORM_LAYERS else ()
    return [
        *map(stage.entry, DEARER),
        *(stage.entry(method, f"{title(method)}, norm layers alone", NORMS) for method in alone),
    ]


def _now_and_then(stage: Ranges, method: str) -> Entry:
    return stage.entry(method, f"{title(method)}, every {EVERY}th step", (f"schedule.every={EVERY}",))


def _late(stage: Ranges, scale: str) -> Entry:
    """Late SAM: in the last eighth of training, in whole epochs."""
    epochs = stage.epochs(scale)
    return stage.entry(
        "sam", f"{title('sam')}, in the last eighth only", (f"schedule.switch_at={epochs - epochs // 8}",)
    )


def _like_a_budget(stage: Ranges, method: str, scale: str) -> Entry:
    """A radius that is warmed up and annealed as the recipe does it with budgets; such a one may be larger."""
    times = recipes.build(stage.recipe, method="lesam", scale=scale).schedule
    fixed = (
        f"schedule.budget_warmup={times.budget_warmup}",
        f"schedule.budget_anneal_start={times.budget_anneal_start}",
    )
    radii = doublings("optimizer.rho", SCHEDULED[method] * stage.first[method])
    return replace(stage.entry(method, f"{title(method)}, scheduled like a budget", fixed), settings=radii)


PRICE = Contest(name="price", stages=STAGES, groups=groups)
