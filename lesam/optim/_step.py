"""One step under way: where it stands, what it has seen, and how it is undone.

Frameworks wrap optimizers in proxies that forward attribute reads and keep attribute writes to themselves. Nothing on
the optimizer is ever rebound for that reason; what changes hangs on the one :class:`Loop` that proxies share.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from torch import Tensor

from ._arithmetic import Space
from ._buffers import Buffers
from ._gradient_sum import PassGradients
from ._last import Last, Seen
from ._leftovers import UsedUp
from ._replay import RandomState
from ._savers import TopSamples
from ._scaling import LossScale

if TYPE_CHECKING:
    from ._loop import Loop
    from ._mixing import Mixing


class Phase(Enum):
    """The stations of a step."""

    IDLE = "between steps"
    CLEAN = "inside clean()"
    CLEANED = "after clean()"
    PERTURBED = "inside perturbed()"
    READY = "after perturbed(), before step()"
    ASIDE = "with a step under way set aside"


#: where the weights are those of the last step, though another may be under way
SETTLED = tuple(phase for phase in Phase if phase is not Phase.PERTURBED)


@dataclass
class Step:
    """A step is a transaction: what is done to the model registers how it is undone in ``undo``.

    Abandoning the step closes ``undo``; taking it drops ``undo``. What lasts for one pass only (moved weights, hooks,
    replayed random numbers) is undone at the end of that pass, in either case.
    """

    number: int = 0  # steps taken before this one: what schedules are asked with
    sharp: bool = True  # whether it is a sharpness-aware one (the option `when`)
    trainable: list[Tensor] = field(default_factory=list)  # parameters that can have a gradient
    perturbable: list[Tensor] = field(default_factory=list)  # those of them that can be perturbed
    chosen: list[Tensor] = field(default_factory=list)  # and those that may be perturbed in this step
    phase: Phase = Phase.IDLE
    undo: ExitStack = field(default_factory=ExitStack)
    scale: LossScale = field(default_factory=LossScale)
    random: RandomState | None = None  # before pass one
    buffers: Buffers | None = None  # before pass one
    gradients: PassGradients | None = None  # of the pass under way
    mix: Mixing | None = None  # what becomes of the gradients of the second pass
    first: dict[Tensor, tuple[Tensor, int]] = field(default_factory=dict)  # the gradient of pass one, with its version
    reached: Sequence[Tensor] = ()  # parameters with a gradient in pass one
    moved: Space | None = None  # where the weights are perturbed just now, and the backup holds those of the last step
    pairs: int = 0  # pairs of passes finished: more than one with perturbation="local"
    mean: dict[Tensor, Tensor] = field(default_factory=dict)  # of the gradients of finished pairs
    rests: bool = False  # whether it takes one pass, and mixes in what earlier steps have taught
    closed: bool = False  # whether it takes one pass because of what the first pass showed
    noted: dict[str, float] = field(default_factory=dict)  # numbers to keep if the step is taken
    beside: bool = False  # whether a part of the step goes beside the base optimizer's
    share: float = 1.0  # of the batch, that the first pass is on
    truncated: float = 0.0  # share of the first backward's gradients that were not computed
    cost: float = 0.0  # passes spent, over all pairs
    refresh_cost: float = 0.0
    loss: Tensor | float | None = None  # at w, for bases that want it
    seen: dict[str, Seen] = field(default_factory=dict)  # for `opt.last`

    def expect(self, what: str, *phases: Phase) -> None:
        """Raise unless the step is in one of ``phases``."""
        if self.phase not in phases:
            raise RuntimeError(f"{what} was called {self.phase.value}; {_REMEDY[self.phase]}")

    def left_out(self) -> float:
        """Share of the gradients of the second pass that the first one had none of."""
        reached = {id(p) for p in self.reached}
        second = [p for p in self.trainable if p.grad is not None]
        return sum(p.numel() for p in second if id(p) not in reached) / max(1, sum(p.numel() for p in second))

    def finish_pair(self, two: bool, samples: TopSamples | None) -> None:
        """One more pair of passes is done. A forward costs a third of a pass, and so does each half of a backward."""
        second = 1.0 if samples is None or samples.gamma == 1.0 else 1 / 3 + samples.gamma
        self.cost += self.share * (1.0 - self.truncated / 3) + second if two else 1.0
        self.pairs += 1
        self.phase = Phase.READY

    def reopen(self) -> None:
        """A second pass after all, of a loop that always runs both: a waste, and no mistake."""
        self.phase, self.pairs, self.cost = Phase.CLEANED, 0, 0.0


@dataclass
class History:
    """What is known from earlier steps and need not be saved."""

    last: Last = field(default_factory=lambda: Last({}))
    fresh: bool = True  # no pass was made yet: looking at values, which waits for the device, is allowed once
    used_up: UsedUp | None = None  # the gradient the last step stepped with
    with_gradient: list[Tensor] | None = None  # parameters that had one in every step so far

    def always_with_gradient(self, now: list[Tensor]) -> list[Tensor]:
        """Those of the parameters with a gradient now that had one in every step before."""
        if self.with_gradient is None:
            return now
        before = {id(p) for p in self.with_gradient}
        return [p for p in now if id(p) in before]


_REMEDY = {
    Phase.IDLE: "run the passes first",
    Phase.CLEAN: "leave the `with opt.clean():` block first",
    Phase.CLEANED: "the second pass is missing: `with opt.perturbed(): loss.backward()` comes next",
    Phase.PERTURBED: "the weights are perturbed there: leave the `with opt.perturbed():` block first",
    Phase.READY: "take the step with opt.step(), or drop it with opt.zero_grad()",
    Phase.ASIDE: "there the model can only be looked at and saved",
}

_open_passes = threading.local()


@contextmanager
def one_pass_at_a_time(loop: Loop) -> Iterator[None]:
    """Refuse a backward inside that serves two optimizers in passes of their own: each would spend its whole budget."""
    passes: list[Loop] = _open_passes.__dict__.setdefault("loops", [])
    others = [(p, p.grad) for other in passes for p in other.trainable()]
    try:
        passes.append(loop)
        yield
    finally:
        passes[:] = [one for one in passes if one is not loop]
    if any(p.grad is not grad for p, grad in others):
        raise RuntimeError(
            "two sharpness-aware optimizers were in a pass of the same backward: each perturbs by its own norm, and "
            "together they spend the budget twice. Give one method both bases, lesam.LESAM([muon, adamw])"
        )
