"""Where runs stand: which train, which ended how, and how long the others still take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lesam.lab import console
from lesam.lab.config.optimizer import title
from lesam.lab.report.page.entries import Member, number
from lesam.lab.runs.folder import RunFolder
from lesam.lab.training.failures import LOG

State = Literal["finished", "diverged", "training", "failed", "stopped"]

WORDS: dict[State, str] = {"failed": f"failed, see its {LOG}", "stopped": "stopped, the same command resumes it"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """One run at this moment."""

    run: RunFolder
    state: State
    epochs: int
    """Finished ones."""
    of: int
    left: float | None
    """Seconds, at the pace so far; None where there is nothing to go by, or nothing left."""
    accuracy: float | None
    """The last test accuracy."""

    def row(self) -> tuple[str, ...]:
        """As a row of a table."""
        config = self.run.config()
        return (
            self.run.path.name,
            title(config.method),
            str(config.seed),
            WORDS.get(self.state, self.state),
            f"{self.epochs} of {self.of}",
            "" if self.left is None else console.clock(self.left),
            "" if self.accuracy is None else f"{100 * self.accuracy:.2f}",
        )


HEAD = ("run", "method", "seed", "state", "epochs", "left", "test accuracy (%)")


def standing(run: RunFolder) -> Standing:
    """Where a run stands."""
    member = Member(run)
    ended, done, planned = member.status != "unfinished", member.epochs, member.config.schedule.epochs
    tested = list(member.series("test_accuracy").values())
    elapsed = number(member.last.get("elapsed"))
    return Standing(
        run=run,
        state=_unfinished(run) if member.status == "unfinished" else member.status,
        epochs=done,
        of=done if ended else planned,
        left=None if ended or not done or elapsed is None else elapsed / done * (planned - done),
        accuracy=tested[-1] if tested else None,
    )


def _unfinished(run: RunFolder) -> State:
    if run.busy():
        return "training"
    return "failed" if (run.path / LOG).exists() else "stopped"


def counted(found: Sequence[Standing]) -> str:
    """How many runs are in which state, in one line.

    >>> counted([])
    'no runs'
    """
    counts = {
        state: sum(each.state == state for each in found) for state in dict.fromkeys(each.state for each in found)
    }
    return ", ".join(f"{count} {state}" for state, count in counts.items()) or "no runs"
