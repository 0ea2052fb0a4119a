"""The moving parts of one run: data, model, optimizer and position, and how they are saved and put back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lesam.lab import models
from lesam.lab.config.checks import check_times
from lesam.lab.config.run import RunConfig
from lesam.lab.data.loading import Pipeline, load_splits
from lesam.lab.data.seeds import mix
from lesam.lab.device import channels_last, seed_generators
from lesam.lab.runs import shards
from lesam.lab.runs.checkpoint import MODEL, Checkpoint
from lesam.lab.tasks import make_task
from lesam.lab.tasks.metrics import Meter
from lesam.lab.tasks.objective import Batch
from lesam.lab.tasks.schedule import Timetable
from lesam.lab.tasks.task import Parts
from lesam.lab.training import sharding
from lesam.lab.training.inputs import check_fit
from lesam.lab.training.layout import share_batch_norm
from lesam.lab.training.optimizer import build_optimizer

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """What a checkpoint is made of."""

    state: dict[str, Any]
    weights: dict[str, Tensor] | None
    """None where only the parts are written."""
    parts: Path | None = None
    """Where the processes of a sharded model have written theirs."""


class Session:
    """Everything that changes while a run trains.

    Randomness is a pure function of (seed, step, rank) and the data of (seed, epoch, batch, rank), the learning
    rate and the budget of the step: what has to be saved is the weights, the optimizer's state and the position.
    """

    def __init__(self, config: RunConfig, fabric: Fabric, *, stop: int | None = None) -> None:
        """Build the parts; every worker starts from the same weights. ``stop`` is a number of steps to end after."""
        self.config, self.fabric = config, fabric
        splits = load_splits(config.data, fabric)
        self.classes = splits.classes
        torch.manual_seed(mix("weights", config.seed))
        self.module = models.build(config.model.name, self.classes, **config.model.arguments)
        if config.system.sync_batch_norm:
            self.module = share_batch_norm(self.module, fabric)
        last = channels_last(config.system, self.module, fabric.device)
        if last:
            self.module.to(memory_format=torch.channels_last)
        self.data = Pipeline(config, fabric, splits, channels_last=last)
        self.times = Timetable(config.schedule, len(self.data.train), stop=stop, head_start=config.task.head_start)
        check_times(config.schedule, epochs=self.times.planned_epochs, steps=self.times.planned)
        if config.schedule.steps is not None and config.schedule.steps > self.times.planned:
            raise ValueError(
                f"schedule.steps={config.schedule.steps} is more than the {self.times.planned} steps of "
                f"schedule.epochs={config.schedule.epochs}; raise schedule.epochs, the shorter of the two decides"
            )
        if not config.system.sync_batch_norm:  # a layer of several GPUs cannot be tried alone
            check_fit(config, self.module, self.data.image_shape)
        compiled = cast(nn.Module, torch.compile(self.module)) if config.system.compile else self.module
        self.model: nn.Module = fabric.setup_module(compiled)
        self.optimizer = build_optimizer(
            config.optimizer,
            _synchronised(self.model, self.module),
            budget=self.times.budget,
            line=self.times.line,
            when=self.times.when,
        )
        self.scaler = getattr(fabric.strategy.precision, "scaler", None)
        self.task = make_task(
            Parts(
                config=config,
                fabric=fabric,
                splits=splits,
                module=self.module,
                model=self.model,
                # Not Fabric's own wrapper: it rounds logits to float32 and wants backward to be called its way only.
                inner=next(self.model.children()),
                optimizer=self.optimizer,
                scaler=self.scaler,
                data=self.data,
                times=self.times,
            )
        )
        self.meter = Meter()
        self.epoch = self.batch = 0
        self.elapsed = 0.0
        self.best: dict[str, Any] = {"test_accuracy": -1.0, "epoch": -1}
        self.diverged_at: int | None = None
        """The step from which on no loss is finite."""

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return min(self.epoch * self.times.steps_per_epoch + self.batch, self.times.steps)

    @property
    def finished(self) -> bool:
        """Whether all steps are taken and recorded."""
        return self.epoch >= self.times.epochs

    def batches(self) -> Iterator[Batch]:
        """What is left of the epoch's training batches."""
        left = self.times.batches(self.epoch) - self.batch
        return islice(self.task.batches(self.epoch, self.batch), left)

    def advance(self, batch: Batch) -> None:
        """Take the next step."""
        step = self.step
        if step == self.times.switch_step and not self.config.schedule.carry_momentum:
            self.optimizer.state.clear()
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.optimizer.lr * self.times.lr_factor(step)
        seed_generators(mix("step", self.config.seed, step, self.fabric.global_rank), self.fabric.device)
        seen, correct = self.task.step(batch, step)
        self.meter.add(seen, correct, len(batch[-1]))
        self.batch += 1

    def end_epoch(self) -> None:
        """Move the position to the start of the next epoch."""
        self.epoch, self.batch, self.meter = self.epoch + 1, 0, Meter()

    def agree_on_buffers(self) -> None:
        """Give every worker the first one's buffers, as DDP does in each forward; FSDP leaves each with its own."""
        if self._sharded and self.fabric.world_size > 1:
            for buffer in self.module.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def saved(self, parts: Path) -> Saved:
        """What a checkpoint needs. Collective: every worker has to call it; a sharded model is written to ``parts``."""
        state = {
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "task": self.task.state_dict(),
            "meter": self._gathered_meter(),
            "elapsed": self.elapsed,
            "best": dict(self.best),
            "diverged_at": self.diverged_at,
        }
        if not self._sharded:
            state["optimizer"] = self.optimizer.state_dict()
            return Saved(state=state, weights=self.module.state_dict())
        self.agree_on_buffers()
        tensors, state["optimizer"] = sharding.parts_of(self.module, self.optimizer)
        if self.fabric.is_global_zero:
            shutil.rmtree(parts, ignore_errors=True)
        self.fabric.barrier()
        shards.write(parts, tensors)
        at_the_end = self.finished and self.fabric.is_global_zero
        return Saved(state=state, weights=shards.whole(parts, MODEL) if at_the_end else None, parts=parts)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a saved moment. Collective: every worker has to call it."""
        state = checkpoint.state()
        if (checkpoint.shards is not None) != self._sharded:
            written, wanted = ("fsdp", "another") if checkpoint.shards is not None else ("another", "fsdp")
            raise ValueError(
                f"{checkpoint.path} was written with --strategy {written} and cannot be resumed with {wanted}: "
                f"the optimizer's state is kept in another form. Resume as it began, or in another folder (-o)"
            )
        if checkpoint.shards is not None:
            sharding.put_back(self.module, self.optimizer, checkpoint.shards, state["optimizer"])
        else:
            self.module.load_state_dict(checkpoint.weights())
            self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler is not None and state["scaler"] is not None:
            self.scaler.load_state_dict(state["scaler"])
        self.task.load_state_dict(state["task"])
        meters = state["meter"]
        if len(meters) != self.fabric.world_size:
            raise ValueError(
                f"{checkpoint.path} was written by {_processes(len(meters))} and cannot be resumed by "
                f"{_processes(self.fabric.world_size)}: random numbers and BatchNorm would be those of neither. "
                f"Start {len(meters)} as before (--devices, --nodes), or another folder (-o)"
            )
        if checkpoint.batch:
            self.meter.load_state_dict(meters[self.fabric.global_rank])
        self.epoch, self.batch = checkpoint.epoch, checkpoint.batch
        self.elapsed, self.best = state["elapsed"], state["best"]
        self.diverged_at = state.get("diverged_at")

    @property
    def _sharded(self) -> bool:
        return self.config.system.strategy == "fsdp"

    def _gathered_meter(self) -> list[dict[str, Tensor]]:
        mine = self.meter.state_dict()
        if self.fabric.world_size == 1:
            return [mine]
        everyone: list[Any] = [None] * self.fabric.world_size
        torch.distributed.all_gather_object(everyone, mine)
        return everyone


def _processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"


def _synchronised(model: nn.Module, module: nn.Module) -> nn.Module:
    """The DDP wrapper inside Fabric's, which the optimizer has to know; the bare module where there is none."""
    return next((part for part in model.modules() if isinstance(part, DistributedDataParallel)), module)
