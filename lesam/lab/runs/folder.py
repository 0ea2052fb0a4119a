"""The folder of one run: who may write to it, its metric files and what is left of them after a crash.

``docs/run-folder.md`` describes every file; other tools read them, so names and fields are stable.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lesam import __version__
from lesam.lab.config.run import RunConfig
from lesam.lab.config.text import from_json, to_json
from lesam.lab.files import sync_file, sync_folder, write_atomically

Row = dict[str, Any]
EARLIER = "earlier"
"""Folder inside a run's with what is kept of it from before."""


class RunBusyError(RuntimeError):
    """Another process is training the run."""


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, path: Path | str) -> None:
        """Name a folder; nothing is created until something is written."""
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"

    @classmethod
    def of(cls, config: RunConfig, runs: Path | str) -> RunFolder:
        """The folder of a configuration below ``runs``."""
        return cls(Path(runs) / config.folder_name)

    def config(self) -> RunConfig:
        """The configuration of the run.

        Raises:
            ValueError: There is none, or this version cannot read it; the sentence names the file and its version.
        """
        file = self.path / "config.json"
        try:
            return from_json(file.read_text())
        except FileNotFoundError:
            raise ValueError(f"{self.path} is not a run folder: it has no config.json") from None
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise ValueError(f"{file}{self._written_by()} cannot be read: {error}") from None

    def create(self, config: RunConfig, environment: Mapping[str, Any]) -> None:
        """Write the configuration, and add this start to the list of environments."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / "config.json", to_json(config))
        starts = [*self.environments(), dict(environment)]
        write_atomically(self.path / "environment.json", json.dumps(starts, indent=2) + "\n")

    def environments(self) -> list[Row]:
        """One entry for each time the run was started."""
        file = self.path / "environment.json"
        try:
            starts: list[Row] = parsed(file.read_text())
        except FileNotFoundError:
            return []
        except ValueError:
            starts = [{}, None]  # type: ignore[list-item]
        if not isinstance(starts, list) or not all(isinstance(start, dict) for start in starts):
            raise ValueError(f"{file} is damaged; it only lists when and where the run was started: move it away")
        return starts

    def summary(self) -> Row | None:
        """The result of a finished run, None while it is not finished."""
        file = self.path / "summary.json"
        try:
            summary: Row = parsed(file.read_text())
            numbers = [summary["last"].get(name) for name in ("test_accuracy", "train_accuracy", "validation_accuracy")]
            if "test_accuracy" in summary["last"]:
                numbers.append(summary["best_test_selected"]["test_accuracy"])
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError):
            numbers = ["damaged"]
        if not all(value is None or is_share(value) for value in numbers):
            raise ValueError(f"{file}{self._written_by()} is damaged; delete it, and `lesam train` writes it again")
        return summary

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the run as finished."""
        write_atomically(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")

    def results(self) -> list[str]:
        """Names of what training and measuring wrote, without the configuration, the list of starts and old results."""
        stay = {"config.json", "environment.json", ".lock", EARLIER}
        return sorted(path.name for path in self.path.iterdir() if path.name not in stay)

    def set_aside(self, names: Sequence[str]) -> Path:
        """Move files and folders of the run to a new folder ``earlier/N``; the summary first, so none is left over."""
        taken = [path.name for path in (self.path / EARLIER).glob("[0-9]*")]
        number = 1 + max((int(name) for name in taken if name.isdecimal()), default=0)
        aside = self.path / EARLIER / str(number)
        aside.mkdir(parents=True)
        for name in sorted(names, key=lambda name: name != "summary.json"):
            if (self.path / name).exists():
                (self.path / name).rename(aside / name)
        sync_folder(aside)
        sync_folder(self.path)
        return aside

    def metrics(self) -> list[Row]:
        """One row per epoch."""
        return read_rows(self.path / "metrics.jsonl")

    def steps(self) -> list[Row]:
        """One row per window of optimizer steps."""
        return read_rows(self.path / "steps.jsonl")

    def append(self, metrics: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> None:
        """Add the rows of one epoch."""
        for name, rows in (("steps.jsonl", steps), ("metrics.jsonl", [metrics])):
            with (self.path / name).open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)

    def sync(self) -> None:
        """Bring all rows to the disk and rewrite the CSV: called before each checkpoint, which relies on them."""
        for name in ("steps.jsonl", "metrics.jsonl"):
            if (self.path / name).exists():
                sync_file(self.path / name)
        self._write_csv()

    def rewind(self, *, epoch: int) -> None:
        """Forget rows of epochs at or after ``epoch``, and a torn last line: they will be written again."""
        for name in ("metrics.jsonl", "steps.jsonl"):
            path = self.path / name
            if path.exists():
                kept = [row for row in read_rows(path) if row["epoch"] < epoch]
                write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))
        self._write_csv()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep a second process from training the same run; a killed owner's lock vanishes with it."""
        if os.name == "nt":
            yield
            return
        import fcntl

        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as file:
            for attempt in reversed(range(3)):  # a process that only looks holds the lock for a moment
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
                        warnings.warn(
                            f"the file system of {self.path} cannot lock files ({error}): nothing keeps a second "
                            "process from training the same run, so start it only once",
                            stacklevel=2,
                        )
                        break
                    if not attempt:
                        message = f"another process is training {self.path}; wait for it or stop it"
                        raise RunBusyError(message) from None
                    time.sleep(0.05)
            yield

    def busy(self) -> bool:
        """Whether another process is training the run, as far as can be seen at this moment."""
        if os.name == "nt":
            return False
        import fcntl

        try:
            # Only read, and shared with others who look: the folder may be one that we may not write to.
            with (self.path / ".lock").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # no lock, none that we may see, or a file system without locks
            return False
        return False

    def _written_by(self) -> str:
        """Which version last trained the run, as far as its folder says."""
        try:
            start = self.environments()[-1]
            version, commit = start["packages"]["lesam"], (start["commit"] or {}).get("id", "")
        except (ValueError, TypeError, LookupError, AttributeError):
            return ""
        return f" (written by lesam {version}{f' at commit {commit[:10]}' if commit else ''}; this is {__version__})"

    def _write_csv(self) -> None:
        rows = self.metrics()
        columns = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self.path / "metrics.csv", text.getvalue())


def parsed(text: str) -> Any:
    """JSON of a file of a run.

    Raises:
        ValueError: It is none, or nested more deeply than anything that is written here.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_share(value: object) -> bool:
    """Whether a value of a file can be an accuracy, that of a run which diverged included.

    >>> is_share(0.5), is_share(float("nan")), is_share(81.5), is_share("0.5")
    (True, True, False, False)
    """
    return isinstance(value, int | float) and not (value < 0 or value > 1)


def read_rows(path: Path) -> list[Row]:
    """Rows of a JSONL file; a torn last line, as a killed process leaves it, is not a row."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    rows: list[Row] = []
    for number, line in enumerate(lines):
        try:
            row = parsed(line)
        except json.JSONDecodeError:
            if number + 1 < len(lines):
                raise ValueError(f"{path}, line {number + 1} is not JSON: {line[:80]!r}") from None
            continue
        except ValueError as error:
            raise ValueError(f"{path}, line {number + 1} is {error}: {line[:80]!r}") from None
        if not isinstance(row, dict) or "epoch" not in row:
            raise ValueError(f"{path}, line {number + 1} is no row of a run: {line[:80]!r}")
        if type(row["epoch"]) is not int:
            raise ValueError(f"{path}, line {number + 1} has a row whose epoch is no whole number: {line[:80]!r}")
        rows.append(row)
    return rows


def readable(runs: Iterable[RunFolder]) -> tuple[list[RunFolder], list[str]]:
    """Those of the runs whose files can be read, and a sentence about each of the others."""
    good: list[RunFolder] = []
    complaints: list[str] = []
    for run in runs:
        try:
            run.config()
            run.summary()
            run.metrics()
        except (ValueError, OSError) as error:
            complaints.append(str(error))
        else:
            good.append(run)
    return good, complaints


def find_runs(paths: Sequence[Path | str], *, follow: Callable[[Path], bool] = lambda link: True) -> list[RunFolder]:
    """The run folders among and below the given paths, in the order of their names.

    A run inside the folder of another one is a part of that one (a first pass), found only by its own path.

    Args:
        paths: Where to look.
        follow: Asked about each link to a folder below them, before anything behind it is looked at.
    """
    found: dict[Path, RunFolder] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise ValueError(f"{path} does not exist; run folders are made by `lesam train`")
        folders = {path} if (path / "config.json").exists() else set(_below(path, follow))
        for folder in sorted(folders):
            if not folders.intersection(folder.parents):
                found[folder] = RunFolder(folder)
    if not found:
        raise ValueError(f"no run folders below {', '.join(map(str, paths))}; `lesam train` makes them")
    return list(found.values())


def _below(path: Path, follow: Callable[[Path], bool]) -> Iterator[Path]:
    """Folders with a ``config.json`` below a path, links followed that may be, none of them twice."""
    seen: set[Path] = set()
    for name, folders, files in os.walk(path, followlinks=True):
        real = Path(name).resolve()
        if real in seen:
            folders.clear()  # a link that leads back
            continue
        seen.add(real)
        if "config.json" in files:
            folders.clear()  # what lies in a run is a part of it
            yield Path(name)
        links = [Path(name, folder) for folder in folders if os.path.islink(os.path.join(name, folder))]
        refused = {link.name for link in links if not follow(link)}
        folders[:] = [folder for folder in folders if folder not in refused]
