"""Where contests take place, and over which settings each method is searched there: five, each twice as large."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lesam.lab import recipes
from lesam.lab.config.optimizer import has_budget, title
from lesam.lab.config.run import ScheduleConfig
from lesam.lab.sweeps.tuning import Entry, Setting

HELD_OUT: Setting = ("data.options.validation=0.25",)
TWO_PASSES = ("sam", "asam", "gsam", "friendlysam", "ssam", "fishersam", "eigensam", "esam")


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
    repeats: int
    """Fresh seeds of every entry."""
    beyond: tuple[Setting, ...] = ()
    """Of the base, where its search ended at an edge: tried afterwards, to see what lies there, and never chosen."""
    attacks: tuple[str, ...] = ()
    """Attacks on the repetitions, by name."""
    smoke: Setting = ()
    """Changes at the smoke scale, where not every recipe holds images out to choose on."""
    trial: Setting = ()
    """Changes of trials alone, see :class:`lesam.lab.sweeps.tuning.Entry`."""

    def entry(self, method: str, name: str | None = None, fixed: Setting = ()) -> Entry:
        """A method over its five settings."""
        field = "sigma" if has_budget(method) else "rho"
        return Entry(
            name=name or title(method),
            recipe=self.recipe,
            method=method,
            fixed=fixed,
            settings=doublings(f"optimizer.{field}", self.first[method]),
            trial=self.trial,
        )

    def base_entry(self, name: str | None = None, fixed: Setting = ()) -> Entry:
        """The base optimizer over five pairs of learning rate and weight decay."""
        return Entry(
            name=name or title(self.base),
            recipe=self.recipe,
            method=self.base,
            fixed=fixed,
            settings=self.base_settings,
            trial=self.trial,
        )

    def twice_the_epochs(self, scale: str, labels: str = "", fixed: Setting = ()) -> Entry:
        """The base with the compute of two passes; ``labels`` names the ones that ``fixed`` sets."""
        own = self._schedule(scale)
        # Recipes that count steps have more epochs than they need.
        longer = f"schedule.epochs={2 * own.epochs}" if own.steps is None else f"schedule.steps={2 * own.steps}"
        return self.base_entry(f"{title(self.base)}, twice the epochs{labels}", (longer, *fixed))

    def epochs(self, scale: str) -> int:
        """How long the recipe trains."""
        return self._schedule(scale).epochs

    def _schedule(self, scale: str) -> ScheduleConfig:
        return recipes.build(self.recipe, method=self.base, scale=scale).schedule


def rates(first: float, decay: float = 0.1) -> tuple[Setting, ...]:
    """Four learning rates, each twice the one before, and the third with five times the weight decay.

    >>> rates(0.001)[2:]
    (('optimizer.lr=0.004', 'optimizer.weight_decay=0.1'), ('optimizer.lr=0.008', 'optimizer.weight_decay=0.1'), \
('optimizer.lr=0.004', 'optimizer.weight_decay=0.5'))
    """
    return pairs(*((first * 2**power, decay) for power in range(4)), (first * 4, 5 * decay))


def pairs(*values: tuple[float, float]) -> tuple[Setting, ...]:
    """Settings of pairs of a learning rate and a weight decay.

    >>> pairs((0.1, 0.01))
    (('optimizer.lr=0.1', 'optimizer.weight_decay=0.01'),)
    """
    return tuple((f"optimizer.lr={lr:g}", f"optimizer.weight_decay={decay:g}") for lr, decay in values)


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
    repeats=20,
    beyond=pairs((0.008, 1), (0.008, 2), (0.008, 4)),
)

CNN = Ranges(
    recipe="mnist1d-cnn",
    base="adamw",
    base_settings=rates(8e-3),
    first={
        **dict.fromkeys(TWO_PASSES, 0.025),
        "asam": 0.125,
        "s2sam": 0.025,
        "msam": 0.2,
        "lesam": 0.0125,
        "lesamplus": 0.0125,
    },
    repeats=20,
)

CIFAR_MLP = Ranges(
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
    repeats=5,
    beyond=pairs((0.002, 1), (0.002, 2), (0.002, 4)),
)

CIFAR_CONV = Ranges(
    recipe="cifar100-resnet18",
    base="sgd",
    base_settings=rates(2.5e-2, decay=5e-4),
    first={"sam": 0.025, "lesam": 0.025},
    repeats=10,
    beyond=pairs((0.1, 0.005), (0.1, 0.01)),
    attacks=("linf-1", "l2-32"),
    smoke=HELD_OUT,
)

LONG_TAIL = replace(
    CIFAR_CONV,
    recipe="cifar100-lt100-ce",
    repeats=5,
    beyond=pairs((0.4, 5e-4), (0.2, 2.5e-3)),
    attacks=(),
    smoke=(*HELD_OUT, "data.options.train_size=800"),
)

DOMAINS = Ranges(
    recipe="pacs-cartoon",
    base="adam",
    base_settings=rates(1e-3, decay=1e-4),
    first={"sam": 0.025, "lesam": 0.025},
    repeats=5,
    # A repetition chooses its length on a part of the source and is trained on all of it: nothing is left to choose on.
    trial=("task.two_passes=false", "data.options.validation=0.2"),
)

STAGES = (MLP, CNN, CIFAR_MLP, CIFAR_CONV, LONG_TAIL, DOMAINS)
