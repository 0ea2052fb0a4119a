"""What a person sees of a run: a progress bar on a terminal, plain lines in a log, nothing in a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from lesam.lab.config.run import RunConfig
from lesam.lab.console import Pace, bars, on_terminal

if TYPE_CHECKING:
    from rich.console import Console


class Reporter(Protocol):
    """Is called as a run advances. Calls come from the process with rank 0 only."""

    def start(self, config: RunConfig, *, steps: int, done: int) -> None:
        """A run begins, or resumes after ``done`` of its ``steps``."""

    def step(self) -> None:
        """One more step was taken. Called often, must not touch the device."""

    def epoch(self, row: Mapping[str, Any], *, epochs: int) -> None:
        """An epoch ended with this row of metrics."""

    def message(self, text: str) -> None:
        """Something worth a sentence."""

    def stop(self) -> None:
        """The run ended, well or not."""


class Silent:
    """Reports nothing."""

    def start(self, config: RunConfig, *, steps: int, done: int) -> None:
        """Ignored."""

    def step(self) -> None:
        """Ignored."""

    def epoch(self, row: Mapping[str, Any], *, epochs: int) -> None:
        """Ignored."""

    def message(self, text: str) -> None:
        """Ignored."""

    def stop(self) -> None:
        """Ignored."""


class Lines(Silent):
    """One plain line per epoch on standard output."""

    def start(self, config: RunConfig, *, steps: int, done: int) -> None:
        """Name the run and start the clock."""
        self._steps, self._pace = steps, Pace(done)
        resumed = f", resumed at step {done}" if done else ""
        self.message(f"{config.folder_name}: {steps} steps{resumed}")

    def epoch(self, row: Mapping[str, Any], *, epochs: int) -> None:
        """Print the epoch's row and the time left."""
        left = self._pace.left(row["step"], self._steps)
        self.message(f"epoch {row['epoch'] + 1}/{epochs}  {describe(row)}" + (f"  {left} left" if left else ""))

    def message(self, text: str) -> None:
        """Print a line at once."""
        print(text, flush=True)


class Bar(Silent):
    """A rich progress bar for one run."""

    def __init__(self, console: Console | None = None) -> None:
        """Prepare the bar; it appears at the start of a run, on standard output unless told otherwise."""
        self._bar = bars(note=True, console=console)

    def start(self, config: RunConfig, *, steps: int, done: int) -> None:
        """Show the bar."""
        self._bar.start()
        self._name = f"{config.recipe} {config.method} seed {config.seed}"
        self._task = self._bar.add_task(self._name, total=steps, completed=done, note="")

    def step(self) -> None:
        """Advance the bar; rich redraws it in its own thread."""
        self._bar.advance(self._task)

    def epoch(self, row: Mapping[str, Any], *, epochs: int) -> None:
        """Show the epoch and its metrics beside the bar, the best test accuracy so far first."""
        best = row.get("best_test_accuracy")
        note = ("" if best is None else f"best test {best * 100:.2f} %  ") + describe(row)
        self._bar.update(self._task, description=f"{self._name}, epoch {row['epoch'] + 1}/{epochs}", note=note)

    def message(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(text, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Leave the bar as it is."""
        self._bar.stop()


def reporter() -> Reporter:
    """A bar on a terminal, plain lines elsewhere."""
    return Bar() if on_terminal() else Lines()


def describe(row: Mapping[str, Any]) -> str:
    """The metrics a person looks at first, in one line.

    >>> describe({"train_loss": 0.5, "train_accuracy": 0.9, "test_accuracy": 0.8, "rho": 0.1, "capped": 0.25})
    'loss 0.500  train 90.00 %  test 80.00 %  rho 0.1  at cap 25 %'
    """
    parts = []
    loss = row.get("train_loss")
    if loss is None:  # one-pass methods see the perturbed loss only
        loss = row.get("perturbed_loss")
    if loss is not None:
        parts.append(f"loss {loss:.3f}")
    for name in ("train", "validation", "test"):
        if row.get(f"{name}_accuracy") is not None:
            parts.append(f"{name} {row[f'{name}_accuracy'] * 100:.2f} %")
    if row.get("rho") is not None:
        parts.append(f"rho {row['rho']:.3g}")
    if row.get("capped"):
        parts.append(f"at cap {row['capped'] * 100:.0f} %")
    if row.get("images_per_second") is not None:
        parts.append(f"{row['images_per_second']:.0f} images/s")
    return "  ".join(parts)
