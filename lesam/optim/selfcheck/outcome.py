"""What a check can come to: a measurement, a broken promise, or nothing to show here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Measured:
    """A number and what it is a number of.

    Example:
        >>> print(Measured(3.14e-9, "largest relative difference"))
        3.1e-09 largest relative difference
    """

    value: float
    what: str

    def __str__(self) -> str:
        whole = float(self.value).is_integer() and abs(self.value) < 1e6
        return f"{int(self.value) if whole else format(self.value, '.2g')} {self.what}"


class BrokenPromiseError(Exception):
    """A promise does not hold; the text says where and by how much."""


class NotApplicableError(Exception):
    """There is nothing to show on this device; the text says why."""


Check = Callable[[torch.device], Measured]


def first_line(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


@contextmanager
def needs(what: str) -> Iterator[None]:
    """Around plain torch: what it cannot do on a device is no promise of this library."""
    try:
        yield
    except Exception as error:
        raise NotApplicableError(f"plain torch fails here at {what}: {first_line(error)}") from error


def each(cases: Iterable[tuple[str, Callable[[], None]]]) -> int:
    """Run every case, also after one has failed; returns their number, or raises and names those that failed."""
    count = 0
    failures: dict[str, list[str]] = {}
    for name, case in cases:
        count += 1
        try:
            case()
        except NotApplicableError:
            raise
        except BrokenPromiseError as error:
            failures.setdefault(str(error), []).append(name)
        except Exception as error:
            failures.setdefault(first_line(error), []).append(name)
    if failures:
        raise BrokenPromiseError("; ".join(f"{', '.join(names)}: {text}" for text, names in failures.items()))
    return count
