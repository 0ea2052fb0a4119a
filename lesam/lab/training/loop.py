"""The training loop. There is one in the project, and every experiment runs on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from lesam.lab.config.checks import check
from lesam.lab.config.run import RecordConfig, RunConfig, moment
from lesam.lab.models.weights import head_of
from lesam.lab.runs import checkpoint as checkpoints
from lesam.lab.runs import environment
from lesam.lab.runs.folder import RunBusyError, RunFolder
from lesam.lab.runs.prefix import start_from_relative
from lesam.lab.tasks import metrics as meter
from lesam.lab.training.collapse import CollapseWatch
from lesam.lab.training.divergence import lost_since
from lesam.lab.training.fabric import make_fabric
from lesam.lab.training.interrupt import Interrupt, RunInterruptedError
from lesam.lab.training.layout import laid_out
from lesam.lab.training.length import Choice, choose, first_pass
from lesam.lab.training.loggers import Loggers, check_loggers
from lesam.lab.training.reporter import Reporter, Silent, reporter
from lesam.lab.training.session import Session
from lesam.lab.training.tracking import Tracker

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Summary = dict[str, Any]


def train(
    config: RunConfig,
    *,
    runs: Path | str = "runs",
    fabric: Fabric | None = None,
    progress: Reporter | None = None,
    again: bool = False,
) -> Summary:
    """Train a run to its end, from the newest valid checkpoint where there is one.

    The run's folder lies below ``runs`` and must be visible to every worker. A finished run is left alone. Where the
    task chooses its length in a first pass, that one is trained before, in a folder inside this run's.

    Args:
        config: The run.
        runs: Where run folders are kept.
        fabric: A launched Fabric to share between runs; by default one is made.
        progress: Called as the run advances; by default a bar or plain lines.
        again: Train a finished run anew; what it had stays in ``earlier/`` of its folder.

    Returns:
        The content of ``summary.json``; ``diverged_at`` in it is the first step of those without a finite loss.

    Raises:
        RunInterruptedError: The process was asked to stop; a checkpoint was written.
        RunBusyError: Another process is training this run.
    """
    check(config)
    check_loggers(config.record)
    fabric = fabric or make_fabric(config.system)
    progress = (progress or reporter()) if fabric.is_global_zero else Silent()
    config = laid_out(config, fabric.world_size)
    folder = RunFolder.of(config, runs)
    done: Summary | None = fabric.broadcast(folder.summary())
    if done is not None and not again:
        lost = "" if done.get("diverged_at") is None else f" and diverged at step {done['diverged_at']}"
        progress.message(f"{folder.path} is finished{lost}; nothing to do (--again trains it anew)")
        return done
    anew = done is not None
    if fabric.broadcast(folder.busy()):  # before data are loaded; the lock itself is taken when they are
        raise RunBusyError(f"another process is training {folder.path}; wait for it or stop it")
    if config.task.two_passes:
        return _train_twice(config, folder, fabric, progress, anew=anew)
    # Built before anything is written: missing data or weights, and what the parts refuse, show here.
    session = Session(config, fabric)

    def relative() -> None:
        found = start_from_relative(config, Path(runs))
        if found is not None:
            progress.message(f"{folder.path} begins where {found.path} was at its switch")

    with _opened(folder, config, fabric, relative, anew=anew) as done:
        return _finish(session, folder, progress) if done is None else done


def _train_twice(
    config: RunConfig, folder: RunFolder, fabric: Fabric, progress: Reporter, *, anew: bool = False
) -> Summary:
    """Let a first pass choose the length, and then train for that long."""
    first = first_pass(config)
    inner = RunFolder.of(first, folder.path)
    finished = fabric.broadcast(inner.summary()) is not None and not anew
    session = None if finished else Session(first, fabric)
    with _opened(folder, config, fabric, anew=anew) as done:
        if done is not None:
            return done
        if session is not None:
            with _opened(inner, first, fabric) as chosen:
                if chosen is None:
                    _finish(session, inner, progress)
        choice = cast(Choice, fabric.broadcast(choose(inner) if fabric.is_global_zero else None))
        return _finish(Session(config, fabric, stop=choice.steps), folder, progress, choice)


@contextmanager
def _opened(
    folder: RunFolder,
    config: RunConfig,
    fabric: Fabric,
    begin: Callable[[], None] = lambda: None,
    *,
    anew: bool = False,
) -> Iterator[Summary | None]:
    """The folder of a run that begins or resumes, locked against other processes.

    Gives the summary of a run that another process finished since it was looked at. ``begin`` is called before
    anything is written to the folder; ``anew`` sets aside what is there.
    """
    with ExitStack() as stack:
        busy, done = "", None
        if fabric.is_global_zero:
            try:
                stack.enter_context(folder.lock())
            except RunBusyError as error:
                busy = str(error)
            else:
                if anew:
                    folder.set_aside(folder.results())
                done = folder.summary()
                if done is None:
                    begin()
                    folder.create(config, environment.describe())
        busy, done = fabric.broadcast((busy, done))
        if busy:  # on every worker, so that none waits for the others
            raise RunBusyError(busy)
        yield done


def _finish(session: Session, folder: RunFolder, progress: Reporter, choice: Choice | None = None) -> Summary:
    with Interrupt() as interrupt:
        session.fabric.barrier()
        try:
            run = Run(session, folder, progress, interrupt, choice)
            with run.loggers:
                return run.finish()
        finally:
            progress.stop()


class Run:
    """One run on its way: takes steps, writes rows and checkpoints."""

    def __init__(
        self,
        session: Session,
        folder: RunFolder,
        progress: Reporter,
        interrupt: Interrupt,
        choice: Choice | None = None,
    ) -> None:
        """Go back to the newest valid checkpoint of the folder; ``choice`` is the first pass that set the length."""
        self.choice = choice
        self._saved_at = time.monotonic()
        self.session, self.folder, self.progress, self.interrupt = session, folder, progress, interrupt
        self.fabric, self.config = session.fabric, session.config
        self.record = self.config.record
        self.kept = tuple(moment(time, session.times.epochs) for time in self.record.keep_epochs)
        log_to = self.record if self.fabric.is_global_zero else RecordConfig()
        self.loggers = Loggers(log_to, folder.path, progress.message)
        found, complaints = self.fabric.broadcast(checkpoints.newest_valid(folder.checkpoints))
        for complaint in complaints:
            progress.message(complaint)
        if found is not None:
            session.restore(found)
        elif (begun := _begun_from(session)) is not None:
            progress.message(begun)
        if self.fabric.is_global_zero:
            if found is None and folder.metrics():
                aside = folder.set_aside(["metrics.jsonl", "steps.jsonl", "metrics.csv"])
                progress.message(f"there is no checkpoint: training starts anew; the rows so far are kept in {aside}")
            folder.rewind(epoch=session.epoch)
            if session.finished and not folder.metrics():
                raise ValueError(
                    f"{folder.path} has the weights of a finished run and no rows of it: its metrics.jsonl is gone. "
                    "Put it back, or train the run anew with --again"
                )
        rows = folder.metrics() if self.fabric.is_global_zero else []
        self.tracker = Tracker(session, rows, progress.message)
        self.collapse = CollapseWatch(session.task.uniform_loss, rows)

    def finish(self) -> Summary:
        """Train what is left and write the summary."""
        session = self.session
        self.progress.start(self.config, steps=session.times.steps, done=session.step)
        while not session.finished:
            row = self._epoch()
            if (sentence := self.collapse.look(row)) is not None:
                self.progress.message(sentence)
            session.end_epoch()
            if self._lost(row):
                self.progress.message(
                    f"no finite loss since step {session.diverged_at}: stopped after epoch {session.epoch}"
                )
                break
            due = session.epoch % self.record.checkpoint_every == 0 and self._time_passed()
            if due or session.epoch in self.kept or session.finished:
                self._checkpoint()
            self.progress.epoch(row, epochs=session.times.epochs)
        summary = self._summary()
        if self.fabric.is_global_zero:
            self.folder.finish(summary)
            word = "finished" if session.diverged_at is None else f"diverged at step {session.diverged_at}:"
            self.progress.message(f"{word} {self.folder.path}: {_result(summary)}")
        self.fabric.barrier()
        return summary

    def _epoch(self) -> dict[str, Any]:
        """Train one epoch, or the rest of it, and record it."""
        session = self.session
        first, began = session.batch, time.monotonic()
        batches = session.times.batches(session.epoch)
        for batch in session.batches():
            session.advance(batch)
            self.progress.step()
            self._between_steps(began, last=session.batch == batches)
        table = self._mean_over_workers(session.meter.table())
        seconds = time.monotonic() - began  # reading the table waited for the device
        return self._write_rows(table, seconds, samples=self._samples(first), began=began)

    def _between_steps(self, began: float, *, last: bool) -> None:
        """Stop if asked to, with a checkpoint; checkpoint if one is due inside the epoch."""
        session, every = self.session, self.record.checkpoint_steps
        alone = self.fabric.world_size == 1
        if alone or last or session.batch % self.record.steps_every == 0:  # workers agree now and then, not every step
            signal = self.interrupt.signal
            if not alone:  # it may have reached one of them only
                signal = int(cast(torch.Tensor, self.fabric.all_reduce(torch.tensor(float(signal)), reduce_op="max")))
            if signal:
                self._checkpoint(extra_seconds=time.monotonic() - began)
                message = f"stopped at step {session.step} with a checkpoint in {self.folder.path}"
                raise RunInterruptedError(message, signal)
            if not last and self.record.checkpoint_minutes is not None and self._time_passed():
                self._checkpoint(extra_seconds=time.monotonic() - began)
        if every is not None and session.step % every == 0 and not last:
            self._checkpoint(extra_seconds=time.monotonic() - began)

    def _write_rows(self, table: torch.Tensor, seconds: float, *, samples: float, began: float) -> dict[str, Any]:
        """Evaluate, and write the rows of the finished epoch."""
        session = self.session
        session.agree_on_buffers()
        sizes = session.meter.sizes()
        correct, count = (self._sum_over_workers(total) for total in session.meter.totals())
        row: dict[str, Any] = {
            "epoch": session.epoch,
            "step": session.step,
            "lr": session.optimizer.param_groups[0]["lr"],
            **meter.summarise(table, sizes),
            "train_accuracy": correct / count,
        }
        first_step = session.epoch * session.times.steps_per_epoch
        session.diverged_at = lost_since(table, first_step=first_step, before=session.diverged_at)
        final = session.step >= session.times.steps or self._lost(row)
        if final or (session.epoch + 1) % self.record.evaluate_every == 0:
            row |= session.task.scores()
            if "test_accuracy" in row:  # a pass that chooses a length does not look at the test images
                if row["test_accuracy"] > session.best["test_accuracy"]:
                    session.best = {"test_accuracy": row["test_accuracy"], "epoch": session.epoch}
                row["best_test_accuracy"] = session.best["test_accuracy"]
        if final and session.diverged_at is None and "test_loss" in row and row["test_loss"] is None:
            session.diverged_at = session.step  # the last step itself ruined the weights
        row |= self.tracker.columns(elapsed=session.elapsed + time.monotonic() - began)
        session.elapsed += time.monotonic() - began
        row |= {"images_per_second": samples / seconds, "seconds": seconds, "elapsed": session.elapsed}
        if self.fabric.is_global_zero:
            every = self.record.steps_every
            steps = meter.windows(table, sizes, epoch=session.epoch, first_step=first_step, every=every)
            self.folder.append(row, steps)
        self.loggers.log(row, step=session.step)
        return row

    def _time_passed(self) -> bool:
        """Whether the last checkpoint is old enough for another one. Collective: the first worker's clock decides."""
        minutes = self.record.checkpoint_minutes
        if minutes is None:
            return True
        return bool(self.fabric.broadcast(time.monotonic() - self._saved_at >= 60 * minutes))

    def _lost(self, row: Mapping[str, Any]) -> bool:
        """Whether the epoch of a row went by without a finite loss, and the run is to stop for it."""
        first_step = row["epoch"] * self.session.times.steps_per_epoch
        since = self.session.diverged_at
        return self.record.stop_diverged and since is not None and since <= first_step

    def _checkpoint(self, extra_seconds: float = 0.0) -> None:
        """Write a checkpoint; the rows it relies on reach the disk first."""
        session = self.session
        session.elapsed += extra_seconds
        saved = session.saved(self.folder.checkpoints / f".step-{session.step:08d}.parts.tmp")
        if self.fabric.is_global_zero:
            self.folder.sync()
            checkpoints.save(
                self.folder.checkpoints,
                epoch=session.epoch,
                step=session.step,
                batch=session.batch,
                state=saved.state,
                weights=saved.weights,
                parts=saved.parts,
            )
            checkpoints.prune(self.folder.checkpoints, keep=self.record.keep, keep_epochs=self.kept)
        session.elapsed -= extra_seconds
        self._saved_at = time.monotonic()
        self.fabric.barrier()

    def _summary(self) -> Summary:
        """The result: the last row, and the best test accuracy, which the test set itself selected."""
        rows = self.folder.metrics() if self.fabric.is_global_zero else []
        last: dict[str, Any] = self.fabric.broadcast(rows[-1] if rows else {})
        return {
            "recipe": self.config.recipe,
            "scale": self.config.scale,
            "method": self.config.method,
            "seed": self.config.seed,
            "fingerprint": self.config.fingerprint,
            "folder": self.folder.path.name,
            "last": last,
            "best_test_selected": dict(self.session.best),
            "seconds": self.session.elapsed,
            **({} if self.session.diverged_at is None else {"diverged_at": self.session.diverged_at}),
            **({} if self.choice is None else {"first_pass": asdict(self.choice)}),
        }

    def _samples(self, first: int) -> float:
        """Images this epoch trained on since it was started or resumed, over all workers."""
        return self._sum_over_workers(self.session.meter.sizes()[first:].sum())

    def _sum_over_workers(self, value: torch.Tensor) -> float:
        return float(cast(torch.Tensor, self.fabric.all_reduce(value, reduce_op="sum")))

    def _mean_over_workers(self, table: torch.Tensor) -> torch.Tensor:
        reduced = self.fabric.all_reduce(table.to(self.fabric.device), reduce_op="mean")
        return cast(torch.Tensor, reduced).cpu()


def _begun_from(session: Session) -> str | None:
    """What a run takes over of pretrained weights, and what it does not."""
    model = session.config.model
    if model.options.get("weights") is None:
        return None
    return (
        f"starts from the weights {model.weights_file or model.options['weights']}, all but the head "
        f"{' and '.join(head_of(session.module))}, which is new: {session.classes} classes"
    )


def _result(summary: Summary) -> str:
    if "test_accuracy" not in summary["last"]:
        return f"validation accuracy {summary['last']['validation_accuracy'] * 100:.2f} %"
    accuracy, best = summary["last"]["test_accuracy"], summary["best_test_selected"]["test_accuracy"]
    return f"test accuracy {accuracy * 100:.2f} % (best epoch, chosen on the test set: {best * 100:.2f} %)"
