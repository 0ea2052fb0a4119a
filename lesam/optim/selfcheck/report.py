"""How outcomes are reported: a table for people, JSON for issues."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ... import __version__

HELD, FAILED, NOT_APPLICABLE = "held", "failed", "not applicable"


@dataclass(frozen=True)
class Row:
    """What one check came to on one device."""

    check: str
    promise: str
    device: str
    result: str
    value: float | None = None
    measured: str = ""  # the value and what it is a value of
    reason: str = ""  # why it failed, or has nothing to show
    seconds: float = 0.0


def environment(devices: Sequence[torch.device]) -> dict[str, str]:
    """Whatever may explain an outcome."""
    facts = {
        "lesam": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    for device in devices:
        if device.type == "cpu":
            facts["cpu"] = f"{platform.machine()}, {torch.get_num_threads()} threads"
        elif device.type == "mps":
            facts["mps"] = f"macOS {platform.mac_ver()[0]}"
        else:
            module = getattr(torch, device.type)
            names = [module.get_device_name(index) for index in range(module.device_count())]
            facts[device.type] = ", ".join(names)
    if "cuda" in facts:
        facts["cuda runtime"] = str(torch.version.cuda or torch.version.hip)
    return facts


class Table:
    """A table that is printed row by row, since the next row may take a while.

    Example:
        >>> table = Table(["restored"], ["Weights come back."])
        >>> print(table.head())
        check     device  result          promise             measured, or why not
        >>> print(table.line(Row("restored", "Weights come back.", "cpu", HELD, 0, "0 weights differ")))
        restored  cpu     held            Weights come back.  0 weights differ
    """

    def __init__(self, checks: Sequence[str], promises: Sequence[str]) -> None:
        self.widths = [max(map(len, checks)), len("device"), len(NOT_APPLICABLE), max(map(len, promises))]

    def head(self) -> str:
        """The names of the columns."""
        return self._aligned("check", "device", "result", "promise", "measured, or why not")

    def line(self, row: Row) -> str:
        """One row; the reasons of a failure are told below the table."""
        last = {HELD: row.measured, FAILED: "see below"}.get(row.result, row.reason)
        return self._aligned(row.check, row.device, row.result, row.promise, last)

    def _aligned(self, *cells: str) -> str:
        padded = [cell.ljust(width) for cell, width in zip(cells[:-1], self.widths, strict=True)]
        return "  ".join([*padded, cells[-1]])


def summary(rows: Sequence[Row]) -> str:
    """How many promises held, and each that did not."""
    counts = [f"{sum(row.result == result for row in rows)} {result}" for result in (HELD, FAILED, NOT_APPLICABLE)]
    lines = ["", f"{', '.join(counts)}, in {sum(row.seconds for row in rows):.0f} s"]
    lines += [f"FAILED {row.check} on {row.device}: {row.reason}" for row in rows if row.result == FAILED]
    return "\n".join(lines)


def write(file: Path, facts: dict[str, str], rows: Sequence[Row]) -> None:
    """Everything as JSON."""
    file.write_text(json.dumps({"environment": facts, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
