"""Loggers beside the run folder: each has the numbers of ``metrics.jsonl``, and none can stop a run."""

from __future__ import annotations

import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lesam.lab import recipes
from lesam.lab.config.text import override
from lesam.lab.training import loggers

from ..running import BreakOff, Listener, smoke, trained

pytestmark = pytest.mark.filterwarnings("ignore")
COLUMN = "test_accuracy"


@pytest.fixture(autouse=True)
def _nothing_leaves_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when trackio is first imported
    monkeypatch.setattr(loggers, "MLFLOW_STORE", None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # put back afterwards: MLflow sets it


def wanted(folder: Any) -> list[tuple[int, float]]:
    return [(row["step"], row[COLUMN]) for row in folder.metrics()]


def approximately(found: list[tuple[int, float]]) -> Any:
    """TensorBoard keeps numbers in single precision."""
    return [(step, pytest.approx(value, rel=1e-6)) for step, value in found]


def in_tensorboard(folder: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return [(event.step, event.value) for event in events.Scalars(COLUMN)]


def records(file: Path) -> Iterator[bytes]:
    """Of W&B's file: a header of 7 bytes, then LevelDB's log, blocks of 32 KiB with parts of records in them."""
    content, at, record, block = file.read_bytes(), 7, b"", 32768
    while at + 7 <= len(content):
        if block - at % block < 7:  # no room for another part: the rest of a block is padding
            at += block - at % block
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        if at + 7 + length > len(content):
            return  # still being written
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def in_wandb(folder: Path) -> list[tuple[int, float]]:
    """The file that ``wandb sync`` would send."""
    from wandb.proto import wandb_internal_pb2

    (file,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    found: list[Any] = []
    while not any(record.HasField("exit") for record in found):  # a process of W&B's own writes it
        time.sleep(0.05)
        found = [wandb_internal_pb2.Record.FromString(data) for data in records(file)]
    rows = [{"/".join(item.nested_key): item.value_json for item in record.history.item} for record in found]
    return [(int(row["trainer/global_step"]), float(row[COLUMN])) for row in rows if COLUMN in row]


def in_mlflow(folder: Path) -> list[tuple[int, float]]:
    with sqlite3.connect(folder / "mlflow.db") as store:
        assert store.execute("select name, status from runs").fetchall() == [(folder.name, "FINISHED")]
        return store.execute("select step, value from metrics where key = ? order by step", (COLUMN,)).fetchall()


def in_trackio(folder: Path) -> list[tuple[int, float]]:
    from trackio.sqlite_storage import SQLiteStorage

    return [(row["step"], row[COLUMN]) for row in SQLiteStorage.get_logs("mine", folder.name) if COLUMN in row]


STORES = {
    "tensorboard": ("record.tensorboard=true", in_tensorboard),
    "wandb": ("record.wandb=mine", in_wandb),
    "mlflow": ("record.mlflow=mine", in_mlflow),
    "trackio": ("record.trackio=mine", in_trackio),
}


@pytest.mark.parametrize("name", STORES)
def test_a_store_has_the_numbers_of_the_folder(name: str, tmp_path: Path) -> None:
    """Of two runs in one process, each its own."""
    pytest.importorskip(name)
    setting, read = STORES[name]
    for seed in (0, 1):
        config = override(recipes.build("digits", method="sgd", scale="smoke", seed=seed), [setting])
        folder = trained(config, tmp_path, listener := Listener())
        assert not any("logs no more" in message for message in listener.messages), listener.messages
        assert len(wanted(folder)) == 2
        assert read(folder.path) == approximately(wanted(folder))


class Failing:
    """A logger whose service fails at one moment."""

    experiment = None

    def __init__(self, moment: str) -> None:
        self.moment, self.calls = moment, 0
        self.fail("begin")

    def fail(self, moment: str) -> None:
        if moment == self.moment:
            self.calls += 1
            raise ConnectionError(f"no answer at {moment}\nand a long trace")

    def log_metrics(self, metrics: dict[str, Any], step: int) -> None:
        self.fail("log")

    def finalize(self, status: str) -> None:
        self.fail("end")


@pytest.mark.parametrize("moment", ["begin", "log", "end"])
def test_a_logger_that_fails_does_not_stop_the_run(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named once; another logger continues, and the result is that of a run without loggers."""
    made: list[Failing] = []

    def make(*_: Any) -> Failing:
        made.append(Failing(moment))
        return made[-1]

    monkeypatch.setitem(loggers.MAKERS, "wandb", make)
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: name)
    settings = ("record.wandb=mine", "record.tensorboard=true")
    folder = trained(smoke("digits", *settings), tmp_path / "logged", listener := Listener())
    complaints = [message for message in listener.messages if "logs no more" in message]
    assert complaints == [
        f"wandb logs no more: no answer at {moment}. The run continues, and its folder has all metrics"
    ]
    assert all(logger.calls == 1 for logger in made)
    assert in_tensorboard(folder.path) == approximately(wanted(folder))
    assert wanted(folder) == wanted(trained(smoke("digits"), tmp_path / "alone"))
    assert folder.summary() is not None


def test_a_run_that_breaks_off_is_marked_as_failed(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    config = smoke("digits", "record.mlflow=mine")
    with pytest.raises(ConnectionError):
        trained(config, tmp_path, BreakOff(epochs=1))
    (store,) = tmp_path.glob("*/mlflow.db")
    with sqlite3.connect(store) as opened:
        assert opened.execute("select status from runs").fetchall() == [("FAILED",)]
