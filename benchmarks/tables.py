"""What the benchmarks were to reach and what they reached, from the files in ``results/``.

    python benchmarks/tables.py                      # one table on the terminal; exits with 1 where a target is missed
    python benchmarks/tables.py docs/benchmarks.md   # the document

Every number comes from a file in ``results/``, with the machine it was measured on.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MISSED = "✗"
NAMES = {"sam": "SAM", "lesam": "LE-SAM", "lesamplus": "LE-SAM+", "gsam": "GSAM"}
Record = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One thing measured: at most its target, or at least it."""

    what: str
    reached: float
    target: float
    at_least: bool = False
    peer: str = ""

    @property
    def met(self) -> bool:
        """Rounding of a sum of sizes is not a miss."""
        return self.reached >= self.target if self.at_least else self.reached <= self.target + 1e-3

    def cells(self) -> list[str]:
        sign = "≥" if self.at_least else "≤"
        return [self.what, f"{sign} {number(self.target)}", number(self.reached), "" if self.met else MISSED, self.peer]


def number(value: float) -> str:
    """Counts as they are, ratios with two digits.

    >>> number(22), number(1.0002), number(1061.0), number(0.001)
    ('22', '1.00', '1,061', '1e-03')
    """
    if 0 < abs(value) < 0.005:
        return f"{value:.0e}"
    return f"{value:,.0f}" if float(value).is_integer() and not 0 < abs(value) < 3 else f"{value:.2f}"


# ---------------------------------------------------------------------- one function a file


def step(record: Record) -> Iterator[Row]:
    allowed = record["targets"]["allowed"]
    for model, methods in record["results"].items():
        for method, found in methods.items():
            if method not in allowed.get(model, {}):
                continue
            name, limits = f"{model}, {NAMES[method]}", allowed[model][method]
            yield Row(f"{name}: operations", found["operations"], limits["operations"])
            yield Row(f"{name}: values read by the host", found["host reads"], limits["host reads"])
            yield Row(f"{name}: copies of the parameters", found["extra memory / parameters"], limits["copies"])
        for method in NAMES if "time" in methods else ():
            most = float(record["targets"]["time / peer"].split()[-1])
            ratio = methods["time"][f"{method} / peer"]
            yield Row(
                f"{model}, {NAMES[method]}: time beside the peer's", ratio, most, peer="`pytorch_optimizer`'s SAM"
            )


def price(record: Record) -> Iterator[Row]:
    for name, most in record["targets"].items():
        what, peer = name.split(" / ")
        yield Row(
            f"ResNet-18, {what}: seconds of a step beside the peer's",
            record["results"]["ratios"][name],
            most,
            peer=peer,
        )


def ddp(record: Record) -> Iterator[Row]:
    rows = record["results"]["rows"]
    for name, found in rows.items():
        kind = name.rpartition(", ")[2]
        if kind in record["targets"]:
            most = float(record["targets"][kind].split()[0])
            yield Row(f"{name}: bytes sent, beside plain SGD", found["bytes"] / rows["SGD"]["bytes"], most, peer="SGD")


def flatness(record: Record) -> Iterator[Row]:
    targets = record["targets"]
    for key in ("product_one_batch", "product_batches"):
        found = record[key]
        others = {name: seconds for name, seconds in found["seconds"].items() if found["errors"].get(name, 1.0) < 1e-4}
        others.pop("lesam")
        what = f"one Hessian product, batches: {found['batches']}"
        peer = f"the quickest correct way: {min(others, key=lambda name: others[name])}"
        yield Row(f"{what}: time beside the peer's", found["ratio_to_cheapest"], targets["product"], peer=peer)
    for name, found in record["eigenvalues"]["measured"].items():
        if name != "PyHessian":
            what = f"top {record['eigenvalues']['k']} eigenvalues, {name}"
            yield Row(
                f"{what}: time beside the peer's", found["ratio_to_pyhessian"], targets["eigenvalues"], peer="PyHessian"
            )
            error = found["relative_error_worst"]
            yield Row(f"{what}: largest relative error", error, targets["error"])


def pipeline(record: Record) -> Iterator[Row]:
    for found in record["results"]:
        what = f"{found['preset']}, threads: {found['threads']}: images per second beside the peer's"
        yield Row(what, found["ratio"], record["target_ratio"], at_least=True, peer="torchvision, two workers")


def train(record: Record) -> Iterator[Row]:
    peers = {"bare": "a loop of two passes and a step", "script": "torchvision's data set, `pytorch_optimizer`'s SAM"}
    for key, speed in record["results"]["speed_of_lab_against"].items():
        yield Row("images per second beside the peer's", speed, record["targets"][key], at_least=True, peer=peers[key])


def report(record: Record) -> Iterator[Row]:
    words = {
        "megabytes": "megabytes of a page of four methods with landscapes",
        "seconds_200": "seconds to summarise 200 runs",
        "seconds_1000": "seconds to summarise 1,000 runs",
        "first_paint": "seconds to the first paint in Chromium",
        "idle_percent": "per cent of a core that an idle watch takes",
    }
    for name, what in words.items():
        if record["results"][name] is not None:
            yield Row(what, record["results"][name], record["targets"][name])


#: the files, in the order of the document
FILES: dict[str, Callable[[Record], Iterator[Row]]] = {
    "step": step,
    "price": price,
    "ddp": ddp,
    "flatness": flatness,
    "input": pipeline,
    "train": train,
    "report": report,
}


def machine(record: Record) -> str:
    """Where and with what a file was measured, as far as it says so."""
    environment = {**record, **record.get("versions", {}), **record.get("environment", {})}
    cores = environment.get("cores", environment.get("cpus"))
    said = [
        environment.get("accelerator") or "CPU",
        f"{cores} cores" if cores else "",
        f"{environment['threads']} thread(s)" if "threads" in environment else "",
        f"torch {environment['torch']}",
        f"Python {environment['python']}" if "python" in environment else "",
        environment.get("platform", ""),
        f"commit {environment['commit'][:7]}" if environment.get("commit") else "",
    ]
    return ", ".join(part for part in said if part)


def records() -> dict[str, Record]:
    return {name: json.loads((HERE / "results" / f"{name}.json").read_text()) for name in FILES}


def document() -> str:
    """The whole of docs/benchmarks.md."""
    found = records()
    rows = {name: list(FILES[name](record)) for name, record in found.items()}
    missed = sum(not row.met for each in rows.values() for row in each)
    count = sum(len(each) for each in rows.values())
    lines = [
        "# Benchmarks",
        "",
        "<!-- written by `make benchmark-tables` from benchmarks/results/*.json -->",
        "",
        "What the package costs beside its peers, on one machine and in turns; only ratios and counts mean anything.",
        "`make benchmarks` measures anew, `make benchmark-tables` writes this page from `benchmarks/results/`.",
        "",
        f"{count - missed} of {count} targets are met; {MISSED} marks the others.",
    ]
    for name, record in found.items():
        title, text = described(name)
        lines += ["", f"## {title}", "", text, "", f"Measured on: {machine(record)}.", ""]
        lines += ["| what | target | reached | | peer |", "|---|---|---|---|---|"]
        lines += ["| " + " | ".join(row.cells()) + " |" for row in rows[name]]
    return "\n".join(lines) + "\n"


def described(name: str) -> tuple[str, str]:
    """The name of a script as a heading, and what its first sentence says it measures."""
    text = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text())) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return f"`benchmarks/{name}.py`", first


def terminal() -> tuple[str, bool]:
    """One table of all benchmarks, and whether all targets are met."""
    rows = [[name, *row.cells()] for name, record in records().items() for row in FILES[name](record)]
    heads = ["benchmark", "what", "target", "reached", "", "peer"]
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [heads, *rows]
    ]
    return "\n".join(lines), not any(MISSED in row for row in rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(document())
    else:
        text, met = terminal()
        print(text)
        sys.exit(not met)
