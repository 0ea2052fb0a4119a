"""Who competes in the study, and over which settings each is searched: five for every entry, each twice as large."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lesam.lab.config.optimizer import title
from lesam.lab.sweeps.tuning import Entry, Setting

ANNEALED: Setting = ("schedule.budget_anneal_start=0.8",)
CONSTANT: Setting = ("schedule.budget_anneal_start=null",)
WARMED: Setting = ("schedule.budget_warmup=0.2",)
COLD: Setting = ("schedule.budget_warmup=0",)
TWO_PASSES = ("sam", "asam", "gsam", "friendlysam", "ssam", "fishersam", "eigensam", "esam")


NOISY = ", 20 % wrong labels"
"""Behind the names of entries that are trained so."""


def doublings(path: str, first: float, count: int = 5) -> tuple[Setting, ...]:
    """Settings of one field, each twice the one before.

    >>> doublings("optimizer.rho", 0.1, 3)
    (('optimizer.rho=0.1',), ('optimizer.rho=0.2',), ('optimizer.rho=0.4',))
    """
    return tuple((f"{path}={first * 2**power:g}",) for power in range(count))


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranges:
    """The smallest of the five radii or budgets of each method on a recipe, and the settings of its base."""

    recipe: str
    base: str
    base_settings: tuple[Setting, ...]
    first: Mapping[str, float]
    epochs: int
    repeats: int
    """Fresh seeds of every entry."""

    def entry(self, method: str, name: str | None = None, fixed: Setting = ()) -> Entry:
        """A method over its five settings."""
        field = "sigma" if method.startswith("lesam") else "rho"
        return Entry(
            name=name or title(method),
            recipe=self.recipe,
            method=method,
            fixed=fixed,
            settings=doublings(f"optimizer.{field}", self.first[method]),
        )

    def base_entry(self, name: str | None = None, fixed: Setting = ()) -> Entry:
        """The base optimizer over five pairs of learning rate and weight decay."""
        return Entry(
            name=name or title(self.base),
            recipe=self.recipe,
            method=self.base,
            fixed=fixed,
            settings=self.base_settings,
        )

    @property
    def twice_the_epochs(self) -> Entry:
        """The base with the compute of two passes."""
        return self.base_entry(f"{title(self.base)}, twice the epochs", (f"schedule.epochs={2 * self.epochs}",))


def rates(first: float) -> tuple[Setting, ...]:
    """Four learning rates of AdamW, each twice the one before, and the third with a larger weight decay.

    >>> rates(0.001)[2:]
    (('optimizer.lr=0.004', 'optimizer.weight_decay=0.1'), ('optimizer.lr=0.008', 'optimizer.weight_decay=0.1'), \
('optimizer.lr=0.004', 'optimizer.weight_decay=0.5'))
    """
    pairs = [*((first * 2**power, 0.1) for power in range(4)), (first * 4, 0.5)]
    return tuple((f"optimizer.lr={lr:g}", f"optimizer.weight_decay={decay:g}") for lr, decay in pairs)


MLP = Ranges(
    recipe="mnist1d-mlp",
    base="adamw",
    base_settings=rates(2e-3),
    first={
        **dict.fromkeys(TWO_PASSES, 0.1),
        "asam": 0.0625,
        "esam": 0.0125,
        "s2sam": 0.1,
        "msam": 0.09375,
        "lesam": 0.05,
        "lesamplus": 0.05,
    },
    epochs=60,
    repeats=20,
)

CNN = Ranges(
    recipe="mnist1d-cnn",
    base="adamw",
    base_settings=rates(2e-3),
    first={
        **dict.fromkeys(TWO_PASSES, 0.025),
        "asam": 0.125,
        "s2sam": 0.025,
        "msam": 0.2,
        "lesam": 0.0125,
        "lesamplus": 0.0125,
    },
    epochs=60,
    repeats=20,
)

CIFAR = Ranges(
    recipe="cifar100-mlp",
    base="adamw",
    base_settings=rates(5e-4),
    first={
        **dict.fromkeys(TWO_PASSES, 0.05),
        "asam": 0.0625,
        "esam": 0.0125,
        "s2sam": 0.05,
        "msam": 0.09375,
        "lesam": 0.025,
        "lesamplus": 0.025,
    },
    epochs=40,
    repeats=5,
)

STAGES = (MLP, CNN, CIFAR)


def competing(stage: Ranges) -> list[Entry]:
    """Every method as its recipe has it."""
    return [stage.entry(method) for method in stage.first]


def controls(stage: Ranges) -> list[Entry]:
    """What of a difference belongs to the budget: radius and budget each with and without annealing and warm-up."""
    found = []
    for method in ("sam", "gsam", "lesam", "lesamplus"):
        own = WARMED + ANNEALED if method.startswith("lesam") else COLD + CONSTANT
        for words, schedule in (
            ("constant", COLD + CONSTANT),
            ("annealed", COLD + ANNEALED),
            ("warmed up", WARMED + CONSTANT),
            ("warmed up and annealed", WARMED + ANNEALED),
        ):
            if schedule != own:
                found.append(stage.entry(method, f"{title(method)}, {words}", schedule))
    # At a budget of 1 nearly every step is at the cap: SAM with a radius that is warmed up and annealed by the budget.
    found.append(
        Entry(
            name=f"{title('lesam')}, nearly always at the cap",
            recipe=stage.recipe,
            method="lesam",
            fixed=("optimizer.sigma=1",),
            settings=doublings("optimizer.rho_max", stage.first["sam"]),
        )
    )
    for parts in (2, 4, 10):  # the batch of 100 has no 8 equal parts
        local = (f"optimizer.micro_batches={parts}", "optimizer.perturbation=local")
        found += [stage.entry(method, f"{title(method)}, local, m = B/{parts}", local) for method in ("sam", "lesam")]
    return found


def further(stage: Ranges) -> list[Entry]:
    """Late switches, and wrong labels."""
    late = (f"schedule.switch_at={stage.epochs * 3 // 4}",)
    noisy = ("data.options.label_noise=0.2",)
    return [
        *(stage.entry(method, f"{title(method)}, in the last quarter only", late) for method in ("sam", "lesam")),
        stage.base_entry(f"{title(stage.base)}{NOISY}", noisy),
        *(stage.entry(method, f"{title(method)}{NOISY}", noisy) for method in ("sam", "lesam", "lesamplus")),
    ]


def groups(stage: Ranges, scale: str) -> list[list[Entry]]:
    """The entries of a stage in the order in which they run; controls and what follows on the first stage only."""
    if scale == "smoke":  # a look at the machinery
        return [[replace(entry, settings=entry.settings[:2])] for entry in (stage.base_entry(), stage.entry("sam"))]
    bases = [stage.base_entry(), stage.twice_the_epochs]
    return [bases, competing(stage), *([controls(stage), further(stage)] if stage is MLP else [])]
