"""What one training run is: frozen, typed records, and the fingerprint that names its folder.

A :class:`RunConfig` holds everything that decides the outcome of a run. Fields marked *not identity*
(where the data lies, how many devices, how often to log) may change between two starts of the same
run; every other field is part of the fingerprint, so a changed setting is another run in another folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

from lesam.lab.config.optimizer import PLAIN, UNLESS_DEFAULT, OptimizerConfig
from lesam.lab.config.suggest import unknown
from lesam.lab.config.task import ClassificationConfig, TaskConfig

Scalar = bool | int | float | str | None
NOT_IDENTITY: Mapping[str, bool] = {"identity": False}
TRACKED = ("lpf", "trace", "eigenvalue")
"""What can be measured while a run trains: low-pass filter, Hessian trace, largest Hessian eigenvalue."""


def moment(time: int | float, length: int) -> int:
    """A time in epochs or steps: an integer is one already, a fraction is a share of the length, rounded down.

    >>> moment(0.8, 200), moment(0.8, 14), moment(160, 200)
    (160, 11, 160)
    """
    return time if isinstance(time, int) else int(time * length + 1e-9)  # 0.29 * 100 is 28.999999999999996


def _check_time(name: str, time: int | float | None) -> None:
    if isinstance(time, float) and not 0.0 < time <= 1.0:
        raise ValueError(f"{name} is a whole number, or a fraction of the length in (0, 1]; got {time}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Which images, which split of them and how they are augmented."""

    name: str
    root: str | None = field(default=None, metadata=NOT_IDENTITY)
    options: Mapping[str, Scalar] = field(default_factory=dict)
    """Keyword arguments of :func:`lesam.lab.data.load`, such as ``train_size`` or ``validation``."""
    augment: str = "none"
    """A preset of :data:`lesam.lab.data.PRESETS`."""
    normalisation: str | None = None
    """Constants of :data:`lesam.lab.data.NORMALISATIONS`; None takes the preset's."""
    augment_options: Mapping[str, Scalar] = field(default_factory=dict)
    """Settings of the preset to change, such as ``resize``."""
    batch_size: int = 128
    """Images of one optimizer step, summed over all devices."""
    eval_batch_size: int = field(default=1000, metadata=NOT_IDENTITY)
    drop_last: bool = False
    workers: int | None = field(default=None, metadata=NOT_IDENTITY)
    """Processes that read image files for each device, kept over all epochs; None takes the processors, 8 at most."""

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be meant."""
        if self.workers is not None and self.workers < 0:
            raise ValueError(f"data.workers must be at least 0 (read in the training process), got {self.workers}")
        if self.batch_size < 1 or self.eval_batch_size < 1:
            raise ValueError(f"batch sizes must be at least 1, got {self.batch_size=} and {self.eval_batch_size=}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """A network of :data:`lesam.lab.models.NAMES` and its keyword arguments."""

    name: str
    options: Mapping[str, Scalar] = field(default_factory=dict)
    weights_file: str | None = field(default=None, metadata=NOT_IDENTITY)
    """Where the pretrained weights lie that ``options["weights"]`` names; None downloads those of torchvision."""
    weights_cell: str | None = field(default=None, metadata=NOT_IDENTITY)
    """The run that made the weights, without its seed: runs that start from its repetitions are repetitions of each
    other."""

    def __post_init__(self) -> None:
        """Refuse a file that has no part in the run's identity."""
        if self.weights_file is not None and not self.options.get("weights"):
            raise ValueError(
                "model.weights_file is where the weights of model.options.weights lie, and that is not set; "
                "--set model.options.weights=FILE sets both"
            )

    @property
    def arguments(self) -> dict[str, Any]:
        """The options as :func:`lesam.lab.models.build` takes them: with the file instead of the weights' name."""
        return dict(self.options) | ({} if self.weights_file is None else {"weights": self.weights_file})


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """How long to train, the learning rate over time, and the budget (sigma, or rho) over time.

    ``steps`` ends training early in the middle of an epoch (fine-tuning is counted in steps). Times of the
    learning rate are in units of ``lr_per``, times of the budget in units of ``budget_per``; both count from 0.
    Warm-ups, milestones and the start of annealing may be fractions of the length, and then follow it.
    """

    epochs: int
    steps: int | None = None
    lr: Literal["cosine", "multistep", "constant"] = "cosine"
    lr_per: Literal["epoch", "step"] = "epoch"
    lr_warmup: int | float = 0
    lr_milestones: tuple[int | float, ...] = ()
    lr_gamma: float = 0.1
    budget_per: Literal["epoch", "step"] = "epoch"
    budget_warmup: int | float = 0
    """Length of the linear rise of the budget from 0."""
    budget_anneal_start: int | float | None = None
    """First epoch (or step) of the cosine decay to 0 at the last one; the paper's "budget annealing"."""
    switch_at: int | None = None
    """Epoch from which the method replaces plain base steps."""
    carry_momentum: bool = True
    """At the switch: keep the base optimizer's buffers (True) or start with empty ones (False)."""
    every: int = field(default=1, metadata=UNLESS_DEFAULT)
    """Steps from one step of the method to the next, with plain base steps between them."""

    def __post_init__(self) -> None:
        """Refuse lengths and times that contradict each other."""
        if self.epochs < 1:
            raise ValueError(f"schedule.epochs must be at least 1, got {self.epochs}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"schedule.steps must be at least 1 or None, got {self.steps}")
        if self.switch_at is not None and not 0 <= self.switch_at <= self.epochs:
            raise ValueError(f"schedule.switch_at must lie in 0..{self.epochs} (the epochs), got {self.switch_at}")
        if self.every < 1 or (self.every > 1 and self.switch_at is not None):
            raise ValueError(
                "schedule.every must be at least 1, and 1 with schedule.switch_at; "
                f"got {self.every} with switch_at={self.switch_at}"
            )
        if min(self.lr_warmup, self.budget_warmup, self.budget_anneal_start or 0) < 0:
            raise ValueError("warm-up lengths and the start of annealing must not be negative")
        for name in ("lr_warmup", "budget_warmup", "budget_anneal_start"):
            _check_time(f"schedule.{name}", getattr(self, name))
        for milestone in self.lr_milestones:
            _check_time("schedule.lr_milestones", milestone)

    def in_epochs(self) -> ScheduleConfig:
        """The same schedule with fractions as epochs, where they are fractions of a known number of epochs.

        A run that writes epoch 160 of 200 and one that writes 0.8 are the same run.
        """
        if self.steps is not None:  # how many epochs there are depends on the number of images
            return self
        changes: dict[str, Any] = {}
        if self.lr_per == "epoch":
            changes["lr_warmup"] = moment(self.lr_warmup, self.epochs)
            changes["lr_milestones"] = tuple(moment(time, self.epochs) for time in self.lr_milestones)
        if self.budget_per == "epoch":
            changes["budget_warmup"] = moment(self.budget_warmup, self.epochs)
            if self.budget_anneal_start is not None:
                changes["budget_anneal_start"] = moment(self.budget_anneal_start, self.epochs)
        return replace(self, **changes)


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemConfig:
    """Device, numbers and launch. Where the devices are is not part of a run's identity."""

    accelerator: str = field(default="auto", metadata=NOT_IDENTITY)
    devices: str = field(default="1", metadata=NOT_IDENTITY)
    nodes: int = field(default=1, metadata=NOT_IDENTITY)
    strategy: Literal["auto", "ddp", "fsdp"] = field(default="auto", metadata=NOT_IDENTITY)
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "64-true"] = "32-true"
    compile: bool = False
    channels_last: Literal["auto", "on", "off"] = "auto"
    deterministic: bool = False
    sync_batch_norm: bool = field(default=False, metadata=UNLESS_DEFAULT)
    """Let BatchNorm see the batch of all workers (torch's SyncBatchNorm, on several GPUs)."""
    workers: int = field(default=1, metadata=UNLESS_DEFAULT)
    """Processes that share a batch, where that decides the outcome: BatchNorm sees one worker's part of the batch, and
    so does a ``local`` perturbation. Set when the run starts, see :func:`lesam.lab.training.layout.laid_out`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordConfig:
    """What is written down and how often. Never part of a run's identity."""

    steps_every: int = field(default=10, metadata=NOT_IDENTITY)
    """Optimizer steps summarised by one row of ``steps.jsonl``."""
    evaluate_every: int = field(default=1, metadata=NOT_IDENTITY)
    checkpoint_every: int = field(default=1, metadata=NOT_IDENTITY)
    """Epochs between checkpoints."""
    checkpoint_minutes: float | None = field(default=None, metadata=NOT_IDENTITY)
    """Minutes from one checkpoint to the next, whether epochs last seconds or hours; kept epochs have theirs."""
    checkpoint_steps: int | None = field(default=None, metadata=NOT_IDENTITY)
    """Steps between further checkpoints, for epochs that last hours."""
    keep: int = field(default=2, metadata=NOT_IDENTITY)
    """How many of the newest checkpoints stay."""
    keep_epochs: tuple[int | float, ...] = field(default=(), metadata=NOT_IDENTITY)
    """Checkpoints after these numbers of epochs, or fractions of all epochs, stay (for flatness, for a late switch)."""
    stop_diverged: bool = field(default=True, metadata=NOT_IDENTITY)
    """Stop after an epoch without a finite loss."""
    track: tuple[str, ...] = field(default=(), metadata=NOT_IDENTITY)
    """Flatness to measure while training: some of :data:`TRACKED`."""
    track_every: int = field(default=1, metadata=NOT_IDENTITY)
    """Epochs between two measurements."""
    track_share: float = field(default=0.1, metadata=NOT_IDENTITY)
    """Share of the time that measuring may take; a measurement that would take more is put off."""
    track_samples: int = field(default=5000, metadata=NOT_IDENTITY)
    """Training images to measure on."""
    tensorboard: bool = field(default=False, metadata=NOT_IDENTITY)
    wandb: str | None = field(default=None, metadata=NOT_IDENTITY)
    """Weights & Biases project to log to."""
    mlflow: str | None = field(default=None, metadata=NOT_IDENTITY)
    """MLflow experiment to log to."""
    trackio: str | None = field(default=None, metadata=NOT_IDENTITY)
    """Trackio project to log to."""

    def __post_init__(self) -> None:
        """Refuse intervals below one."""
        for name in ("steps_every", "evaluate_every", "checkpoint_every", "keep", "track_every", "track_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"record.{name} must be at least 1, got {getattr(self, name)}")
        if self.checkpoint_steps is not None and self.checkpoint_steps < 1:
            raise ValueError(f"record.checkpoint_steps must be at least 1 or None, got {self.checkpoint_steps}")
        if self.checkpoint_minutes is not None and not self.checkpoint_minutes > 0:
            raise ValueError(f"record.checkpoint_minutes must be above 0 or None, got {self.checkpoint_minutes}")
        for time in self.keep_epochs:
            _check_time("record.keep_epochs", time)
        for name in self.track:
            if name not in TRACKED:
                raise unknown("measure to track", name, TRACKED)
        if not 0.0 < self.track_share <= 1.0:
            raise ValueError(f"record.track_share must lie in (0, 1], got {self.track_share}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """One run: a cell of a table, at one scale, with one seed."""

    recipe: str
    scale: str
    seed: int = 0
    data: DataConfig
    model: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    task: TaskConfig = field(default_factory=ClassificationConfig)
    system: SystemConfig = field(default_factory=SystemConfig)
    record: RecordConfig = field(default_factory=RecordConfig)

    def __post_init__(self) -> None:
        """Refuse what no part can see alone."""
        if self.schedule.every > 1 and self.method in PLAIN:
            raise ValueError(
                f"schedule.every={self.schedule.every} says how often a method takes its own step instead of the "
                f"base's, and plain {self.method} has none; leave it out"
            )
        if self.record.track and self.system.strategy == "fsdp":
            raise ValueError(
                "record.track needs the whole network on every worker, and system.strategy=fsdp shards it; "
                "keep checkpoints with record.keep_epochs and measure them with `lesam flatness`"
            )

    @property
    def method(self) -> str:
        """Name of the method: ``sgd``, ``adam``, ``adamw`` or a key of ``lesam.METHODS``."""
        return self.optimizer.method

    @property
    def fingerprint(self) -> str:
        """Ten hexadecimal digits of the settings that decide the outcome."""
        return digest(identity(self))

    @property
    def cell(self) -> str:
        """The fingerprint without the seed: equal for runs that are repetitions of each other."""
        values = {name: value for name, value in identity(self).items() if name != "seed"}
        if self.data.options.get("seed") == self.seed:  # a recipe whose every seed draws its own data
            values["data"]["options"].pop("seed")
        if self.model.weights_cell is not None:
            values["model"]["options"]["weights"] = self.model.weights_cell
        return digest(values)

    @property
    def folder_name(self) -> str:
        """Name of the run's folder: readable first, unique by the fingerprint."""
        return f"{self.recipe}-{self.scale}-{self.method}-seed{self.seed}-{self.fingerprint}"


def identity(record: Any) -> dict[str, Any]:
    """The fields of a record that are part of a run's identity, as plain JSON values."""
    if isinstance(record, ScheduleConfig):
        record = record.in_epochs()
    return {
        item.name: _plain(getattr(record, item.name))
        for item in fields(record)
        if item.metadata.get("identity", True) and not _without_identity(getattr(record, item.name))
        if not (item.metadata.get("unless_default") and getattr(record, item.name) == item.default)
    }


def digest(values: Mapping[str, Any]) -> str:
    """Short stable hash of plain values: key order and formatting do not matter."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return identity(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _without_identity(value: Any) -> bool:
    return is_dataclass(value) and not any(item.metadata.get("identity", True) for item in fields(value))
