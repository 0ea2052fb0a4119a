"""The page against its limits: size, time to summarise many runs, first paint in Chromium, and an idle watch.

    python benchmarks/report.py

Runs are written by hand in the form that training leaves: 60 epochs each, four methods; the landscapes of the small
page are grids of 51 x 51 cells, the paper's size. First paint is what Chromium reports for the file, the median of
three fresh windows; skipped, and said so, where Playwright or Chromium is missing. Idle is the share of a core that
``lesam watch`` takes over 20 seconds with the page open on a folder of 200 runs that nothing is written to.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
from measuring import report, table

from lesam.flatness import Landscape
from lesam.lab import recipes
from lesam.lab.cli import main as lesam
from lesam.lab.runs.folder import RunFolder

METHODS = ("sgd", "sam", "lesam", "lesamplus")
EPOCHS, CELLS, IDLE = 60, 51, 20
TARGETS = {"megabytes": 6.0, "seconds_200": 10.0, "seconds_1000": 30.0, "first_paint": 2.0, "idle_percent": 2.0}


def write_runs(folder: Path, number: int, *, landscapes: bool = False) -> None:
    """Finished runs of four methods."""
    for index in range(number):
        method, seed = METHODS[index % 4], index // 4
        config = replace(recipes.build("digits", method=method, scale="small"), seed=seed)
        run = RunFolder(folder / f"{method}-{seed}")
        run.create(config, {"command": "benchmark"})
        for epoch in range(EPOCHS):
            row: dict[str, Any] = {"epoch": epoch, "step": 10 * epoch + 10, "passes": 2.0, "seconds": 1.0}
            row |= {name: 0.5 + epoch / 200 + seed / 1e4 for name in ("test_accuracy", "train_accuracy")}
            row |= {name: 1 / (epoch + 1) for name in ("train_loss", "test_loss", "rho", "grad_norm", "sharpness")}
            run.append(row, [])
        last = run.metrics()[-1]
        best = {"test_accuracy": last["test_accuracy"], "epoch": EPOCHS - 1}
        run.finish({"last": last, "best_test_selected": best, "seconds": 60.0})
        if landscapes:
            _landscape(run, seed)


def _landscape(run: RunFolder, seed: int) -> None:
    axis = torch.linspace(-1, 1, CELLS, dtype=torch.float64)
    loss = axis.square()[:, None] + axis.square()[None] + 0.01 * torch.randn(CELLS, CELLS, dtype=torch.float64)
    plane = Landscape(loss=loss, x=axis, y=axis, settings={"key.run": run.path.name, "key.seed": 123})
    (run.path / "flatness").mkdir(exist_ok=True)
    plane.save(run.path / "flatness" / f"epoch-{EPOCHS:04d}-landscape-{seed:010x}.npz")


def seconds(action: Callable[[], object]) -> float:
    """How long something takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def first_paint(page: Path) -> float | None:
    """Seconds until Chromium has painted something of a file; None where there is no browser."""
    program = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        return None
    found = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for _ in range(3):
            window = browser.new_page()
            window.goto(page.as_uri())
            window.wait_for_selector("figure .main-svg")
            found.append(window.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000)
            window.close()
        browser.close()
    return statistics.median(found)


def idle_share(folder: Path) -> float:
    """Share of a core of a watch that has been asked once and has nothing new to say, asked as a page asks."""
    import urllib.request

    command = [sys.executable, "-m", "lesam", "watch", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        try:
            assert watch.stdout is not None
            address = watch.stdout.readline().split()[0]
            with urllib.request.urlopen(f"{address}content") as answer:
                tag = answer.headers["ETag"]
            process = psutil.Process(watch.pid)
            before = sum(process.cpu_times()[:2])
            for _ in range(IDLE // 5):
                time.sleep(5)
                asked = urllib.request.Request(f"{address}content", headers={"If-None-Match": tag})
                try:
                    urllib.request.urlopen(asked).close()
                except urllib.error.HTTPError as unchanged:  # 304, as it should be
                    unchanged.close()
            return (sum(process.cpu_times()[:2]) - before) / IDLE
        finally:
            watch.terminate()


def main() -> None:
    """Measure, print and write down."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        write_runs(place / "four", 12, landscapes=True)
        lesam(["report", str(place / "four"), "-o", str(place / "four.html")])
        results: dict[str, float | None] = {"megabytes": (place / "four.html").stat().st_size / 1e6}
        for number in (200, 1000):
            write_runs(place / str(number), number)
            target = ["report", str(place / str(number)), "-o", str(place / f"{number}.html")]
            results[f"seconds_{number}"] = seconds(lambda target=target: lesam(target))
        results["first_paint"] = first_paint(place / "four.html")
        results["idle_percent"] = 100 * idle_share(place / "200")
    rows = [
        [name, "not measured" if found is None else f"{found:.3g}", f"{TARGETS[name]:g}"]
        for name, found in results.items()
    ]
    print(table("The page against its limits", ["", "reached", "limit"], rows))
    report("report", results, TARGETS)


if __name__ == "__main__":
    main()
