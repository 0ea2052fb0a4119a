"""Settings that a search may choose, as they are written on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True, slots=True)
class Range:
    """A setting to be searched: ``path=low:high``, ``path=low:high:log`` or ``path=a,b,c``."""

    path: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Range:
        """Read a range from the command line.

        >>> Range.parse("optimizer.sigma=0.05:1:log")
        Range(path='optimizer.sigma', low=0.05, high=1.0, log=True, choices=())
        """
        path, equals, values = text.partition("=")
        if equals and ":" in values:
            low, high, *rest = values.split(":")
            try:
                limits = float(low), float(high)
            except ValueError:
                limits = (1.0, 0.0)
            if limits[0] < limits[1] and rest in ([], ["log"]) and not (rest and limits[0] <= 0):
                return cls(path, *limits, log=bool(rest))
        elif equals and all(values.split(",")):
            return cls(path, choices=tuple(values.split(",")))
        raise ValueError(
            f"a search range is written section.field=low:high, low:high:log (low > 0) or a,b,c; got {text!r}"
        )

    @property
    def example(self) -> str:
        """An override with some value of the range, to see whether there is such a setting."""
        return f"{self.path}={self.choices[0] if self.choices else self.low}"

    def suggest(self, trial: optuna.Trial) -> str:
        """An override with the value that the study proposes."""
        if self.choices:
            return f"{self.path}={trial.suggest_categorical(self.path, self.choices)}"
        return f"{self.path}={trial.suggest_float(self.path, self.low, self.high, log=self.log)!r}"
