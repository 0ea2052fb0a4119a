r"""Runs that a perturbation has stopped from learning: the network answers "all alike", and nothing leads back.

A perturbation of radius :math:`\rho` along the gradient promises a rise of :math:`\rho\,\langle g, \hat\epsilon\rangle`
(:math:`\sigma` for LE-SAM below its cap). Two signs, both seen on the runs of ``docs/study.md``: the loss stays
at that of the uniform prediction, and, under a loss budget, the measured rise is many times what was promised, because
gradients vanish there and the radius grows. Runs that learnt had a mean rise of at most 1.6 times the promise (LE-SAM)
and 2.3 (ASAM), those that collapsed under a budget of 2.2 times and more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]

NEAR = 0.02
"""How near the loss of the uniform prediction counts as near it, as a share of it."""
AT = 0.01
"""The same for being there."""
LUCK = 0.03
"""Accuracy above that of guessing from which on a network counts as learning."""
FALL = 1e-3
"""By which share of it the loss must fall over the epochs in question to count as falling."""
PATIENCE = 3
"""Epochs at the uniform prediction after which a run counts as collapsed whatever its rise is."""
FEWEST = 100
"""Steps that those epochs must have: a handful decides nothing."""


class CollapseWatch:
    """Looks at the rows of a run's epochs, and speaks once.

    >>> watch = CollapseWatch(uniform=math.log(10))
    >>> row = {"train_loss": 2.303, "train_accuracy": 0.1, "lr": 0.1, "rho": 9.0, "overrun": 1.0}
    >>> watch.look({**row, "epoch": 0, "step": 40})
    >>> watch.look({**row, "epoch": 1, "step": 80})[:81]
    'collapsed: after epoch 2 the loss is that of the uniform prediction and the loss '
    """

    def __init__(self, uniform: float | None, rows: Iterable[Row] = ()) -> None:
        """Name the loss of the uniform prediction, None if the task has none, and the rows of the run so far."""
        self._uniform = uniform
        self._recent: deque[Row] = deque(maxlen=PATIENCE + 1)
        self._said = False
        for row in rows:  # of a run that was interrupted
            self.look(row)

    def look(self, row: Row) -> str | None:
        """A sentence when the run has collapsed, once; None otherwise."""
        self._recent.append(row)
        if self._said or self._uniform is None or not row.get("rho"):
            return None
        sign = self._over_budget() or self._stuck()
        if sign is None:
            return None
        self._said = True
        return (
            f"collapsed: after epoch {row['epoch'] + 1} the loss is that of the uniform prediction and {sign} (radius "
            f"{row['rho']:.3g}); a radius or budget that is warmed up (schedule.budget_warmup=0.2), a smaller one or a "
            "cap (optimizer.rho_max) prevents it"
        )

    def _over_budget(self) -> str | None:
        """Near the uniform prediction, and most steps of two epochs rose by more than twice the promise."""
        last = list(self._recent)[-2:]
        over = [row.get("overrun") or 0.0 for row in last]
        if len(last) < 2 or min(over) <= 0.5 or not all(self._guesses(row, NEAR) for row in last):
            return None
        return f"the loss rises by more than twice what was asked in {100 * over[-1]:.0f} % of the steps"

    def _stuck(self) -> str | None:
        """At the uniform prediction for several epochs, while neither the rate is being raised nor the loss falls."""
        last = list(self._recent)[-PATIENCE:]
        earlier = list(self._recent)[:-PATIENCE]
        steps = last[-1]["step"] - (earlier[-1]["step"] if earlier else 0)
        if len(last) < PATIENCE or steps < FEWEST or last[-1]["lr"] > last[-2]["lr"]:
            return None
        if not all(self._guesses(row, AT) for row in last) or not last[-1].get("sharpness"):
            return None
        falls = last[-1]["train_loss"] < last[0]["train_loss"] * (1 - FALL)
        negligible = last[-1]["sharpness"] < FALL * last[-1]["train_loss"]  # whatever it is, it is not the radius
        return None if falls or negligible else f"has been for {PATIENCE} epochs"

    def _guesses(self, row: Row, level: float) -> bool:
        uniform, loss = self._uniform, row.get("train_loss")
        if uniform is None or loss is None or row["train_accuracy"] > LUCK + math.exp(-uniform):
            return False
        return bool(abs(loss - uniform) <= level * uniform)
