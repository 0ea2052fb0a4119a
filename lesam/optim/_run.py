"""Where a step stands: all of the wrapper's changing state that is not saved, in one object held by reference.

Frameworks wrap optimizers in proxies that forward attribute reads and keep attribute writes to themselves. Nothing on
the optimizer is ever rebound for that reason; it is written here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from torch import Tensor

from ._arithmetic import Space
from ._gradients import Carry, Consumed
from ._last import Last, Seen
from ._passes import BatchStatistics, RandomState


class Phase(Enum):
    """The stations of a step."""

    IDLE = "between steps"
    CLEAN = "inside clean()"
    CLEANED = "after clean()"
    PERTURBED = "inside perturbed()"
    READY = "after perturbed(), before step()"


@dataclass
class Run:
    """One step under way."""

    phase: Phase = Phase.IDLE
    last: Last = field(default_factory=lambda: Last({}))
    warm: bool = False  # a first pass has been made: looks at values, which wait for the device, are over
    consumed: Consumed | None = None  # the gradient the last step used up
    zeroed: bool = False  # opt.zero_grad() was called in this pass
    carry: Carry | None = None  # gradients that the pass under way adds to
    perturbed: Space | None = None  # where the weights are not themselves
    scaler: Any = None  # the GradScaler given to the passes of this step
    random: RandomState | None = None  # before pass one
    statistics: BatchStatistics | None = None  # before pass one
    seen: dict[str, Seen] = field(default_factory=dict)  # for `last`
    cost: float = 0.0  # passes spent, over all pairs
    refresh_cost: float = 0.0
    micro_batches: int = 1  # closures whose gradients are summed in one pass
    set_aside: dict[Tensor, Tensor] = field(default_factory=dict)  # mean over finished pairs of passes ("local")
    pairs: int = 0  # of passes, finished in this step

    def expect(self, what: str, *phases: Phase) -> None:
        """Raise unless the step is in one of ``phases``."""
        if self.phase not in phases:
            raise RuntimeError(f"{what} was called {self.phase.value}; {_REMEDY[self.phase]}")

    def reset(self) -> None:
        """Back to between steps. What describes earlier steps stays."""
        fresh = Run(last=self.last, warm=self.warm, consumed=self.consumed)
        self.__dict__.update(fresh.__dict__)


_REMEDY = {
    Phase.IDLE: "run the passes first",
    Phase.CLEAN: "leave the `with opt.clean():` block first",
    Phase.CLEANED: "the second pass is missing: `with opt.perturbed(): loss.backward()` comes next",
    Phase.PERTURBED: "the weights are perturbed there: leave the `with opt.perturbed():` block first",
    Phase.READY: "take the step with opt.step(), or drop it with opt.zero_grad()",
}


def as_scalar(loss: object) -> Tensor | float:
    """A closure's return value as a number or a 0-d tensor without history."""
    if isinstance(loss, Tensor):
        return loss.detach().mean() if loss.ndim else loss.detach()
    return float(loss) if isinstance(loss, int | float) else float("nan")
