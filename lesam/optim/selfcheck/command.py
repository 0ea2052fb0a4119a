"""The command: runs the checks on every device kind and reports."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from .device import bases, compiled, graphs, memory, no_waiting, streams
from .exactness import by_hand, channels_last, dropout, restored, undone
from .outcome import BrokenPromiseError, Check, NotApplicableError, first_line
from .precision import bf16, fp16, overflow
from .processes import ddp, fsdp2
from .report import FAILED, HELD, NOT_APPLICABLE, Row, Table, environment, summary, write

CHECKS: dict[str, Check] = {
    check.__name__.replace("_", "-"): check
    for check in (
        restored,
        undone,
        by_hand,
        no_waiting,
        memory,
        fp16,
        overflow,
        bf16,
        dropout,
        channels_last,
        bases,
        compiled,
        streams,
        graphs,
        ddp,
        fsdp2,
    )
}


def promise_of(check: Check) -> str:
    """The first line of a check's docstring."""
    return (check.__doc__ or "").strip().splitlines()[0]


def devices() -> list[torch.device]:
    """One of each kind that torch can use here."""
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "xpu": torch.xpu.is_available(),
    }
    return [torch.device(kind) for kind, there in available.items() if there]


def run(names: Sequence[str], on: Sequence[torch.device]) -> Iterator[Row]:
    """The outcome of each check on each device; whatever a check raises is an outcome too."""
    for device in on:
        for name in names:
            start = time.monotonic()
            result, value, measured, reason = HELD, None, "", ""
            with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
                warnings.simplefilter("ignore")
                try:
                    found = CHECKS[name](device)
                    value, measured = found.value, str(found)
                except NotApplicableError as error:
                    result, reason = NOT_APPLICABLE, str(error)
                except BrokenPromiseError as error:
                    result, reason = FAILED, str(error)
                except Exception as error:
                    result, reason = FAILED, first_line(error)
            seconds = round(time.monotonic() - start, 2)
            yield Row(name, promise_of(CHECKS[name]), device.type, result, value, measured, reason, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status, 1 if a promise does not hold here."""
    parser = argparse.ArgumentParser(
        "python -m lesam.optim.selfcheck", description="What the optimizers promise, here."
    )
    parser.add_argument("--list", action="store_true", help="show the checks and stop")
    parser.add_argument("--only", nargs="+", choices=CHECKS, metavar="NAME", help="run these checks only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the outcome to a file, for a report")
    options = parser.parse_args(arguments)
    names = [name for name in CHECKS if options.only is None or name in options.only]
    promises = [promise_of(CHECKS[name]) for name in names]
    if options.list:
        width = max(map(len, names))
        print("\n".join(f"{name:{width}}  {promise}" for name, promise in zip(names, promises, strict=True)))
        return 0
    on = devices()
    facts, table, rows = environment(on), Table(names, promises), []
    print("\n".join(f"{name}: {fact}" for name, fact in facts.items()), table.head(), sep="\n\n", flush=True)
    for row in run(names, on):
        print(table.line(row), flush=True)
        rows.append(row)
    print(summary(rows))
    if options.json is not None:
        write(options.json, facts, rows)
    return int(any(row.result == FAILED for row in rows))
