"""Loggers beside the run folder: TensorBoard, Weights & Biases, MLflow, Trackio."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lesam.lab.config.run import RecordConfig

PACKAGES = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "trackio": ("trackio",),
}
"""Fields of the record that ask for a logger, and the packages of which each needs one."""
MLFLOW_STORE = os.environ.get("MLFLOW_TRACKING_URI")
"""As it was before the first run of this process, since MLflow itself sets the variable."""


def check_loggers(record: RecordConfig) -> None:
    """Refuse a logger whose package is absent, before anything is written."""
    for name in _asked(record):
        packages = PACKAGES[name]
        if not any(importlib.util.find_spec(package) for package in packages):
            raise ValueError(f"record.{name} needs a package that is not installed: pip install {packages[0]}")


class Loggers:
    """What a run logs to beside its folder.

    The folder has all metrics whatever happens here: a logger that fails is named once and left out, and the run
    continues.

    Args:
        record: Says which.
        folder: The run's. TensorBoard, W&B and (unless ``MLFLOW_TRACKING_URI`` is set) MLflow keep their files in it.
        complain: Called with a sentence about a logger that failed.
    """

    def __init__(self, record: RecordConfig, folder: Path, complain: Callable[[str], None]) -> None:
        self._complain = complain
        self._running: dict[str, Any] = {}
        for name in _asked(record):
            self._try(name, partial(self._begin, name, record, folder))

    def _begin(self, name: str, record: RecordConfig, folder: Path) -> None:
        self._running[name] = MAKERS[name](record, folder)

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Log the numbers of a row."""
        numbers = {key: value for key, value in row.items() if value is not None}
        for name, logger in list(self._running.items()):
            self._try(name, partial(logger.log_metrics, numbers, step=step))

    def __enter__(self) -> Loggers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write out what is left; the next run of this process begins a record of its own."""
        for name, logger in list(self._running.items()):
            self._try(name, partial(_end, logger, "success" if kind is None else "failed"))
        self._running.clear()

    def _try(self, name: str, act: Callable[[], Any]) -> None:
        try:
            act()
        except Exception as error:  # whatever a service, its client or its disk may come up with
            self._running.pop(name, None)
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            self._complain(f"{name} logs no more: {reason}. The run continues, and its folder has all metrics")


def _asked(record: RecordConfig) -> list[str]:
    return [name for name in PACKAGES if getattr(record, name) not in (None, False)]


def _end(logger: Any, status: str) -> None:
    logger.finalize(status)
    if hasattr(logger.experiment, "finish"):  # W&B: Lightning would give its run to the next logger of this process
        logger.experiment.finish()


def _tensorboard(record: RecordConfig, folder: Path) -> Any:
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    return TensorBoardLogger(root_dir=folder, name="tensorboard", version="")


def _wandb(record: RecordConfig, folder: Path) -> Any:
    from lightning.pytorch.loggers import WandbLogger

    return WandbLogger(project=record.wandb, name=folder.name, save_dir=folder)


def _mlflow(record: RecordConfig, folder: Path) -> Any:
    from lightning.pytorch.loggers import MLFlowLogger

    store = MLFLOW_STORE or f"sqlite:///{(folder / 'mlflow.db').resolve()}"
    return MLFlowLogger(experiment_name=str(record.mlflow), run_name=folder.name, tracking_uri=store)


class _Trackio:
    """Trackio behind the interface of Lightning's loggers, which have none for it."""

    def __init__(self, record: RecordConfig, folder: Path) -> None:
        import trackio

        self.experiment = trackio.init(
            project=str(record.trackio), name=folder.name, resume="allow", embed=False, auto_log_cpu=False
        )

    def log_metrics(self, metrics: dict[str, Any], step: int) -> None:
        self.experiment.log(metrics, step=step)

    def finalize(self, status: str) -> None:
        """Nothing beyond the end of the experiment."""


MAKERS: dict[str, Callable[[RecordConfig, Path], Any]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "trackio": _Trackio,
}
