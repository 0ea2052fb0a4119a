"""Training metrics that stay on the device until the epoch ends: no step waits for the host."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

NOTHING = math.nan

OVERRUN = 2.0
"""Times the rise of the loss that a radius promised, from which on a step counts as overrun."""


class Seen(NamedTuple):
    """What one step saw, as ``last`` of a sharpness-aware optimizer; NaN for what the method does not have."""

    loss: Tensor | float = NOTHING
    """At the weights."""
    perturbed_loss: Tensor | float = NOTHING
    grad_norm: Tensor | float = NOTHING
    slope: Tensor | float = NOTHING
    rho: Tensor | float = NOTHING
    sigma: Tensor | float = NOTHING
    capped: Tensor | float = NOTHING
    cost: Tensor | float = NOTHING
    """Passes spent."""

    def row(self, device: torch.device) -> Tensor:
        """All values as one row on the device, unread."""
        return torch.stack(
            [
                value.detach().to(device, torch.float32)
                if isinstance(value, Tensor)
                else torch.full((), value, dtype=torch.float32, device=device)
                for value in self
            ]
        )


class Meter:
    """Collects what each step of one epoch saw."""

    def __init__(self) -> None:
        """Start an empty epoch."""
        self._steps: list[Tensor] = []
        self._sizes: list[int] = []
        self._correct: list[Tensor] = []

    def add(self, seen: Seen, correct: Tensor, size: int) -> None:
        """Remember one step: what it saw, right answers, batch size."""
        self._steps.append(seen.row(correct.device))
        self._correct.append(correct)
        self._sizes.append(size)

    def state_dict(self) -> dict[str, Tensor]:
        """The epoch so far, for a checkpoint in its middle."""
        return {
            "steps": self.table().float(),
            "correct": torch.stack(self._correct).cpu() if self._correct else torch.zeros(0),
            "sizes": torch.tensor(self._sizes),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue an epoch that was interrupted."""
        self._steps = list(state["steps"])
        self._correct = list(state["correct"])
        self._sizes = [int(size) for size in state["sizes"]]

    def table(self) -> Tensor:
        """One row per step, on the CPU."""
        if not self._steps:
            return torch.zeros(0, len(Seen._fields))
        device = self._steps[-1].device
        return torch.stack([row.to(device) for row in self._steps]).cpu()

    def totals(self) -> tuple[Tensor, Tensor]:
        """Right answers and samples of the epoch, on the CPU: sums that workers may add up."""
        correct = sum(int(count) for count in torch.stack([count.cpu() for count in self._correct]))
        return torch.tensor(float(correct)), torch.tensor(float(sum(self._sizes)))

    def sizes(self) -> Tensor:
        """Samples of each step."""
        return torch.tensor(self._sizes, dtype=torch.float64)


def summarise(table: Tensor, sizes: Tensor) -> dict[str, float | None]:
    """Means over steps (the loss weighted by samples) and the spread of the radius; None where nothing was seen."""
    columns = {name: table[:, index].double() for index, name in enumerate(Seen._fields)}
    rho = columns["rho"][torch.isfinite(columns["rho"])]
    excess = columns["perturbed_loss"] - columns["loss"]
    asked = columns["rho"] * columns["slope"]
    overrun = torch.where((asked > 0) & ~excess.isnan(), (excess > OVERRUN * asked).double(), NOTHING)
    return {
        "train_loss": plain((columns["loss"] * sizes).sum() / sizes.sum()),
        "perturbed_loss": _mean(columns["perturbed_loss"]),
        "sharpness": _mean(excess),
        "grad_norm": _mean(columns["grad_norm"]),
        "slope": _mean(columns["slope"]),
        "rho": _mean(rho),
        "rho_min": plain(rho.min()) if len(rho) else None,
        "rho_max": plain(rho.max()) if len(rho) else None,
        "sigma": _mean(columns["sigma"]),
        "capped": _mean(columns["capped"]),
        "overrun": _mean(overrun),
        "passes": _mean(columns["cost"]),
    }


def windows(table: Tensor, sizes: Tensor, *, epoch: int, first_step: int, every: int) -> list[dict[str, Any]]:
    """Rows of ``steps.jsonl``: the same summary over windows of ``every`` steps."""
    rows = []
    for start in range(0, len(table), every):
        stop = min(start + every, len(table))
        summary = summarise(table[start:stop], sizes[start:stop])
        rows.append({"epoch": epoch, "step": first_step + start, "steps": stop - start, **summary})
    return rows


def plain(value: Tensor | float) -> float | None:
    """A finite number for JSON, or None."""
    number = float(value)
    return number if math.isfinite(number) else None


def _mean(values: Tensor) -> float | None:
    finite = values[torch.isfinite(values)]
    return plain(finite.mean()) if len(finite) else None
