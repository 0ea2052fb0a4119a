"""Who competes on each stage of the study, in the order in which it runs."""

from __future__ import annotations

from dataclasses import replace

from lesam.lab.config.optimizer import title
from lesam.lab.paper.study.contest import Contest, Follower, Group
from lesam.lab.paper.study.entries import MLP, STAGES, Ranges, doublings
from lesam.lab.sweeps.tuning import Entry, Setting

ANNEALED: Setting = ("schedule.budget_anneal_start=0.8",)
CONSTANT: Setting = ("schedule.budget_anneal_start=null",)
COLD: Setting = ("schedule.budget_warmup=0",)

NOISY = ", 20 % wrong labels"
"""Behind the names of entries that are trained so."""

WRONG: Setting = ("data.options.label_noise=0.2",)
"""What these are trained with."""

BOTH = "warmed up and annealed"
"""Behind the names of methods whose radius is scheduled like LE-SAM's budget."""

PARTS = (2, 4, 10)
"""Of a batch, each with a perturbation of its own; the batch of 100 has no 8 equal ones."""

NEAR = (1 / 1.3, 1.3)
"""Multiples of the chosen budget that span a factor of 1.7."""

TRACKED: Setting = (
    "record.track=eigenvalue,trace,lpf",
    "record.track_every=4",
    "record.track_share=1",
    "record.track_samples=2000",
)

OWN_WARMUP = 0.2
WARMUPS = (0.02, 0.05, 0.1, OWN_WARMUP, 0.4)
"""Shares of training."""

CAPS = (1.0, 0.25, 0.0625)
"""Shares of the radius of the first step."""

FIRST_NORM = 0.11
"""Of the first gradients of the fully connected network on MNIST-1D: their mean over the first epoch of trials."""


def groups(stage: Ranges, scale: str) -> list[Group]:
    """The groups of a stage; controls and what follows on the first stage only."""
    if scale == "smoke":  # a look at the machinery
        both = (stage.base_entry(fixed=stage.smoke), stage.entry("sam", fixed=stage.smoke))
        base, sam = (replace(entry, settings=entry.settings[:2]) for entry in both)
        follower = Follower(name=f"{sam.name}, twice the radius", leader=sam, factor=2.0)
        return [Group(entries=(base,)), Group(entries=(sam,)), Group(followers=(follower,))]
    bases = (stage.base_entry(), stage.twice_the_epochs(scale))
    found = [Group(entries=bases), Group(entries=tuple(stage.entry(method) for method in stage.first))]
    if stage.beyond:
        found.append(Group(entries=(beyond(stage),), repeated=False))
    if stage is not MLP:
        return found
    return [
        *found,
        Group(entries=(beyond(stage, NOISY, WRONG),), repeated=False),
        Group(entries=tuple(further(stage, scale))),
        Group(entries=tuple(schedules(stage))),
        Group(followers=tuple(neighbours(stage))),
        Group(entries=tuple(scans(stage)), repeated=False),
        Group(followers=tuple(tracked(stage))),
        Group(entries=tuple(local(stage))),
    ]


def beyond(stage: Ranges, labels: str = "", fixed: Setting = ()) -> Entry:
    """The base past the edge of its search."""
    return replace(stage.base_entry(f"{title(stage.base)}, searched further{labels}", fixed), settings=stage.beyond)


def scheduled(stage: Ranges, method: str, words: str) -> Entry:
    """A method whose radius or budget is ``constant``, ``annealed``, ``warmed up`` or both."""
    changes = {
        "constant": COLD + CONSTANT,
        "annealed": COLD + ANNEALED,
        "warmed up": warmed(OWN_WARMUP) + CONSTANT,
        BOTH: warmed(OWN_WARMUP) + ANNEALED,
    }
    return stage.entry(method, f"{title(method)}, {words}", changes[words])


def warmed(share: float) -> Setting:
    """A warm-up over a share of training."""
    return (f"schedule.budget_warmup={share:g}",)


def schedules(stage: Ranges) -> list[Entry]:
    """What of a difference belongs to the budget: radius and budget each with and without annealing and warm-up."""
    found = []
    for method in ("sam", "lesam", "gsam", "lesamplus"):
        own = BOTH if method.startswith("lesam") else "constant"
        every = ("annealed", "warmed up", BOTH, "constant")
        found += [scheduled(stage, method, words) for words in every if words != own]
    # At a budget of 1 nearly every step is at the cap: SAM with a radius that is warmed up and annealed by the budget.
    return [
        *found,
        Entry(
            name=f"{title('lesam')}, nearly always at the cap",
            recipe=stage.recipe,
            method="lesam",
            fixed=("optimizer.sigma=1",),
            settings=doublings("optimizer.rho_max", stage.first["sam"]),
        ),
    ]


def local(stage: Ranges) -> list[Entry]:
    """A perturbation of its own for each part of the batch."""
    found = []
    for parts in PARTS:
        changes = (f"optimizer.micro_batches={parts}", "optimizer.perturbation=local")
        found += [stage.entry(method, local_name(title(method), parts), changes) for method in ("sam", "lesam")]
    return found


def local_name(method: str, parts: int) -> str:
    """What a method with perturbations of its own for parts of the batch is called."""
    return f"{method}, local, m = B/{parts}"


def labels_of(name: str) -> str:
    """The end of an entry's name that says on which labels it is trained: its base and SAM's gain have the same.

    >>> labels_of("SAM, 20 % wrong labels"), labels_of("SAM")
    (', 20 % wrong labels', '')
    """
    return NOISY if name.endswith(NOISY) else ""


def further(stage: Ranges, scale: str) -> list[Entry]:
    """Late switches, and wrong labels."""
    # Without annealing, as the paper switches: it would take four fifths of what is left.
    late = (f"schedule.switch_at={stage.epochs(scale) * 3 // 4}", *CONSTANT)
    return [
        *(stage.entry(method, f"{title(method)}, in the last quarter only", late) for method in ("sam", "lesam")),
        stage.base_entry(f"{title(stage.base)}{NOISY}", WRONG),
        stage.twice_the_epochs(scale, NOISY, WRONG),
        *(stage.entry(method, f"{title(method)}{NOISY}", WRONG) for method in ("sam", "lesam", "lesamplus")),
    ]


def neighbours(stage: Ranges) -> list[Follower]:
    """LE-SAM with budgets next to the chosen one."""
    lesam = stage.entry("lesam")
    return [
        Follower(name=f"{lesam.name}, {factor:.2g} times the budget", leader=lesam, factor=factor) for factor in NEAR
    ]


def tracked(stage: Ranges) -> list[Follower]:
    """Whose flatness is measured over training."""
    leaders = (
        stage.base_entry(),
        stage.entry("sam"),
        stage.entry("lesam"),
        scheduled(stage, "sam", BOTH),
    )
    return [Follower(name=one.name, leader=one, part="track", changes=TRACKED) for one in leaders]


def scans(stage: Ranges) -> list[Entry]:
    """LE-SAM over budgets, with warm-ups of several lengths, and with caps instead of one."""
    own = stage.entry("lesam").name
    warmed_up = [entry for share in WARMUPS if (entry := warmed_entry(stage, share)).name != own]
    return [*warmed_up, *(capped_entry(stage, share) for share in CAPS)]


def warmed_entry(stage: Ranges, share: float) -> Entry:
    """LE-SAM whose budget is warmed up over a share of training; the recipe's own is LE-SAM as it competes."""
    if share == OWN_WARMUP:
        return stage.entry("lesam")
    return stage.entry("lesam", f"{title('lesam')}, warmed up over {share:.0%} of training", warmed(share))


def capped_entry(stage: Ranges, share: float) -> Entry:
    """LE-SAM without a warm-up, whose radius is capped at a share of that of the first step."""
    budgets = (setting for (setting,) in stage.entry("lesam").settings)
    return Entry(
        name=f"{title('lesam')}, cap at {share:g} of the first radius",
        recipe=stage.recipe,
        method="lesam",
        fixed=COLD,
        settings=tuple(
            (budget, f"optimizer.rho_max={float(budget.split('=')[1]) / FIRST_NORM * share:.4g}") for budget in budgets
        ),
    )


STUDY = Contest(name="study", stages=STAGES, groups=groups)
