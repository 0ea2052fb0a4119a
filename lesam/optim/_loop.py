"""The passes of a sharpness-aware step, and the state they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from . import _checkpoint
from ._arithmetic import Space, Vector
from ._climb import Climb, Parts, climb
from ._directions import Ascent
from ._gradients import Consumed, EntryCheck, clear, require_dense
from ._last import Last
from ._memory import Memory
from ._mixing import Mixing
from ._passes import BatchStatistics, RandomState, evaluated, normalizers, unsynchronised, without_gradient
from ._run import Phase, Run
from .schedules import Predicate


@dataclass
class Loop:
    """Everything behind the optimizer's interface. Proxies of the optimizer share this one object."""

    base: torch.optim.Optimizer
    parts: Parts
    model: nn.Module | None
    perturb: list[Tensor] | None
    when: Predicate | None
    replay_rng: bool
    local: bool
    max_norm: float | None
    memory: Memory = field(default_factory=Memory)
    run: Run = field(default_factory=Run)

    # ------------------------------------------------------------------ who takes part

    @property
    def step(self) -> int:
        return _checkpoint.step_count(self.base)

    @property
    def due(self) -> bool:
        """Whether the coming step is a sharpness-aware one."""
        return self.when is None or bool(self.when(self.step))

    def trainable(self) -> list[Tensor]:
        return [p for group in self.base.param_groups for p in group["params"] if p.requires_grad]

    def perturbable(self) -> list[Tensor]:
        return self.trainable() if self.perturb is None else [p for p in self.perturb if p.requires_grad]

    def prepare(self) -> Space:
        """Bring the work buffers in line with the parameters; returns the space of what can be perturbed."""
        trainable, perturbable = self.trainable(), self.perturbable()
        if not trainable:
            raise RuntimeError("no parameter of this optimizer requires a gradient")
        self.memory.prepare(trainable, perturbable)
        return self.memory.space("perturbable", perturbable)

    def _subset(self) -> list[bool]:
        perturbable = self.perturbable()
        if self.parts.subset is None or not self.due:
            return [True] * len(perturbable)
        return self.parts.subset.mask(len(perturbable), self.step)

    # ------------------------------------------------------------------ pass one

    @contextmanager
    def first_pass(self, scaler: Any, clear_consumed: bool) -> Iterator[None]:
        """Around the backward at ``w``."""
        run = self.run
        run.expect("clean()", Phase.IDLE, Phase.READY)
        space = self.prepare()
        self._refuse_local_without_model(space)
        self._start_pair(clear_consumed)
        run.scaler, run.zeroed = _enabled(scaler), False
        if run.statistics is None and self.model is not None:
            run.statistics = BatchStatistics(self.model)
        run.random = RandomState(kind.device for kind in space.kinds) if self.replay_rng else None
        run.phase = Phase.CLEAN
        entry = EntryCheck(self.trainable())
        try:
            with ExitStack() as stack:
                if self.local:
                    stack.enter_context(unsynchronised(self.model))
                stack.enter_context(without_gradient(self._truncated(space)))
                yield
            self._check_first(entry)
        except BaseException:
            self.abandon()
            raise
        finally:
            entry.close()
        self._divide("first gradients")
        run.phase = Phase.CLEANED

    def _start_pair(self, clear_consumed: bool) -> None:
        """Deal with what an earlier pass or step left in ``.grad``."""
        run = self.run
        if run.phase is Phase.READY and self.local:
            self._set_aside()
        elif run.phase is Phase.READY:  # that step was never taken
            self.memory.discard()
            clear(self.trainable())
            run.reset()
        elif clear_consumed and run.consumed is not None and run.consumed.still_there():
            clear(self.trainable())

    def _check_first(self, entry: EntryCheck) -> None:
        with_gradient = [p for p in self.trainable() if p.grad is not None]
        if not with_gradient:
            raise RuntimeError("the first pass left no gradient: call backward() on the loss in it")
        require_dense(with_gradient)
        self._check_entry(entry)

    def _check_entry(self, entry: EntryCheck) -> None:
        if not self.run.zeroed and entry.left_over():
            raise RuntimeError(
                "gradients were already there when the pass began, and it added to them, so that the step would be "
                "that of the sum. Call opt.zero_grad() at the start of the closure, or before the first pass"
            )

    def _truncated(self, space: Space) -> list[Tensor]:
        """Tensors whose clean gradient nobody needs: the backward is cut short there.

        Not where several processes exchange gradients in this pass, since they wait for all of them.
        """
        needed = self.parts.combine.mixes_gradient or self.parts.direction.remembers or self.parts.combine.products
        alone = self.local or not dist.is_initialized()
        mask = self._subset()
        if needed or not alone or not any(mask):
            return []
        return [p for p, taken in zip(space.parameters, mask, strict=True) if not taken]

    # ------------------------------------------------------------------ pass two

    @contextmanager
    def second_pass(self, scaler: Any, clear_consumed: bool) -> Iterator[None]:
        """Around the backward at ``w + eps``: the weights are back, bit for bit, however it is left."""
        run = self.run
        run.expect("perturbed()", Phase.IDLE, Phase.CLEANED, Phase.READY)
        space = self.prepare()
        due, two = self.due, run.phase is Phase.CLEANED or (self.due and self.parts.direction.passes == 2)
        if run.phase is not Phase.CLEANED:
            self._start_bare(space, scaler, two, clear_consumed)
        if run.scaler is not _enabled(scaler):
            raise RuntimeError("clean() and perturbed() must be given the same scaler, and scaler.step(opt) be called")
        mixing = (
            Mixing(self.parts.combine, self.memory, self.step) if due and two else Mixing.plain(self.memory, self.step)
        )
        after_first = None if self.model is None else BatchStatistics(self.model)
        if run.statistics is None:
            run.statistics = after_first
        participants: Space | None = None
        entry = EntryCheck([] if two else self.trainable())
        run.phase, run.zeroed = Phase.PERTURBED, False
        try:
            with torch.no_grad():
                if two:
                    self._unscale_first()
                    mixing.keep([p for p in self.trainable() if p.grad is not None])
                climbed = self._plan(mixing, two) if due else None
                if climbed is not None:
                    ascent, perturbation = climbed
                    backup = self.memory.scratch("backup").vector(ascent.space)
                    ascent.space.copy_(backup, ascent.space.weights())
                    participants = ascent.space
                    ascent.space.add_(
                        ascent.space.weights(), perturbation.u, perturbation.coefficient, skip=perturbation.skip
                    )
                    self.parts.direction.learn_before(ascent)
                    self._note(ascent, perturbation)
                if two:
                    run.carry = mixing.hand_over(self.trainable(), self._scale() * run.micro_batches)
            with ExitStack() as stack:
                if run.random is not None and two:
                    stack.enter_context(run.random.replayed())
                yield
            with torch.no_grad():
                self._restore(participants)
                participants = None
                self._finish(mixing, climbed)
            self._check_entry(entry)
        except BaseException:
            with torch.no_grad():
                self._restore(participants)
            self.abandon()
            raise
        finally:
            entry.close()
        if two and after_first is not None:
            after_first.restore()
        run.cost += self._cost(two)
        run.phase = Phase.READY

    def _start_bare(self, space: Space, scaler: Any, two: bool, clear_consumed: bool) -> None:
        """A perturbed pass that no clean() came before: a one-pass step, or a bare backward as pass one."""
        run = self.run
        if self.parts.samples is not None and self.parts.samples.gamma < 1 and self.due:
            raise RuntimeError(f"{self.parts.samples!r} chooses samples by their losses: use step(sample_losses=fn)")
        if not two:
            self._refuse_local_without_model(space)
            self._start_pair(clear_consumed)
        elif run.phase is Phase.READY:
            raise RuntimeError(
                "perturbed() was called twice without a first pass between. Use `with opt.clean():` for it, and "
                "opt.step() after each pair (or, for several local pairs, clean() in each)"
            )
        elif run.consumed is not None and run.consumed.still_there():
            raise RuntimeError(
                "the gradients of the last step are still there: call opt.zero_grad() before the first pass, or run "
                "it inside `with opt.clean():`, which does that"
            )
        elif all(p.grad is None for p in self.trainable()):
            raise RuntimeError("perturbed() found no gradient: run the first pass (loss.backward()) before it")
        elif self.local and isinstance(self.model, nn.parallel.DistributedDataParallel):
            raise RuntimeError('perturbation="local" needs the first pass inside `with opt.clean():`')
        require_dense(self.trainable())
        run.scaler = _enabled(scaler)

    def _plan(self, mixing: Mixing, two: bool) -> tuple[Ascent, Climb] | None:
        """The perturbation of this step, or None if nothing takes part in it."""
        direction, memory, base = self.parts.direction, self.memory, self.base
        chosen = zip(self.perturbable(), self._subset(), strict=True)
        members = [p for p, taken in chosen if taken and direction.takes_part(p, memory, base)]
        if not members:
            return None
        space = memory.space("participants", members)
        g: Vector | None = space.gradients() if two else None
        g_norm = space.scalar(float("nan")) if g is None else space.norm(g)
        ascent = Ascent(self.step, space, memory, g, g_norm, base)
        keep = mixing.adds_in_place or bool(direction.remembers)
        return ascent, climb(self.parts, ascent, keep_gradient=keep)

    def _restore(self, space: Space | None) -> None:
        if space is not None:
            space.copy_(space.weights(), self.memory.scratch("backup").vector(space))

    def _finish(self, mixing: Mixing, climbed: tuple[Ascent, Climb] | None) -> None:
        """Weights are back: check, combine, learn."""
        run = self.run
        carried, run.carry = run.carry, None
        if carried is not None:
            if not carried.touched() and set(carried.held) >= {p for p in self.trainable() if p.grad is not None}:
                carried.close()
                raise RuntimeError("the second pass left no gradient: call backward() on the loss in it")
            carried.merge()
        with_gradient = [p for p in self.trainable() if p.grad is not None]
        if not with_gradient:
            raise RuntimeError("the second pass left no gradient: call backward() on the loss in it")
        require_dense(with_gradient)
        self._divide("second gradients")
        if self.due and self.parts.direction.remembers:
            seen = [p for p in self.perturbable() if p.grad is not None]
            if seen:
                space = self.memory.space("teachers", seen)
                self.parts.direction.learn_after(space, self.memory, space.gradients())
        mixing.mix(self.trainable())
        if run.scaler is not None and climbed is not None:
            # An overflow in pass one must reach the scaler, whatever pass two made of it.
            first = self.memory.space("second gradients", with_gradient).gradients()[0][0]
            first.mul_(torch.where(climbed[1].skip.to(first.device) > 0, float("nan"), 1.0))

    # ------------------------------------------------------------------ scale and number

    def _divide(self, role: str) -> None:
        """From a sum over micro-batches to their mean."""
        if self.run.micro_batches > 1:
            space = self.memory.space(role, [p for p in self.trainable() if p.grad is not None])
            with torch.no_grad():
                space.scale_(space.gradients(), 1.0 / self.run.micro_batches)

    def _unscale_first(self) -> None:
        if self.run.scaler is not None:
            space = self.memory.space("first gradients", [p for p in self.trainable() if p.grad is not None])
            space.scale_(space.gradients(), 1.0 / self._scale())

    def _scale(self) -> Any:
        """The factor that the loss scaler puts on gradients, as a tensor that nobody waits for."""
        scaler = self.run.scaler
        if scaler is None:
            return 1.0
        read = getattr(scaler, "_get_scale_async", None)
        scale = scaler.get_scale() if read is None else read()
        if scale is None:
            raise RuntimeError("a scaler was given, but no loss was scaled with it: scaler.scale(loss).backward()")
        return scale

    def _set_aside(self) -> None:
        """Keep the finished pair's gradient apart while the next pair runs (``perturbation="local"``)."""
        run = self.run
        with torch.no_grad():
            for parameter in self.trainable():
                grad, parameter.grad = parameter.grad, None
                if grad is None:
                    continue
                if parameter in run.set_aside:
                    run.set_aside[parameter].add_(grad)
                else:
                    # DistributedDataParallel may own this memory (gradient_as_bucket_view).
                    run.set_aside[parameter] = grad.clone() if dist.is_initialized() else grad
        run.pairs += 1

    def _bring_back(self) -> None:
        """The mean over all pairs, in ``.grad``."""
        self._set_aside()
        for parameter, total in self.run.set_aside.items():
            parameter.grad = total
        space = self.memory.space("second gradients", list(self.run.set_aside))
        space.scale_(space.gradients(), 1.0 / self.run.pairs)

    # ------------------------------------------------------------------ the end of a step

    @torch.no_grad()
    def take(self, scale: Tensor | None, found_inf: Tensor | None) -> None:
        """The base step, and with it everything drafted on the way."""
        run = self.run
        if (run.scaler is None) != (found_inf is None):
            given, called = ("with", "opt.step()") if found_inf is None else ("without", "scaler.step(opt)")
            raise RuntimeError(
                f"perturbed() was called {given} a scaler, and then {called}: give the scaler to clean() and "
                "perturbed() and step with scaler.step(opt), or use it nowhere"
            )
        if found_inf is not None and bool(found_inf > 0):  # the scaler itself waits for this value
            self.abandon()
            return
        if run.pairs:
            self._bring_back()
        space = self.memory.space("second gradients", [p for p in self.trainable() if p.grad is not None])
        if scale is not None:
            space.scale_(space.gradients(), 1.0 / scale)
        if self.max_norm is not None:
            norm = space.norm(space.gradients())
            space.scale_(space.gradients(), (self.max_norm / (norm + 1e-6)).clamp(max=1.0))
        self.base.step()
        self.memory.commit()
        _checkpoint.set_step_count(self.base, self.step + 1)
        run.last = Last(**run.seen, cost=space.scalar(run.cost / max(run.pairs, 1) + run.refresh_cost))
        run.consumed = Consumed(self.trainable())
        run.reset()

    def __getstate__(self) -> dict[str, object]:
        """Copies and pickles start between steps."""
        return {**self.__dict__, "run": Run()}

    def abandon(self) -> None:
        """None of the step: drafts, BatchNorm statistics and gradients go."""
        if self.run.statistics is not None:
            self.run.statistics.restore()
        if self.run.carry is not None:
            self.run.carry.close()
        self.memory.discard()
        clear(self.trainable())
        self.run.reset()

    def _note(self, ascent: Ascent, perturbation: Climb) -> None:
        seen = {
            "grad_norm": ascent.g_norm,
            "rho": perturbation.rho,
            "sigma": perturbation.sigma,
            "capped": perturbation.capped,
        }
        if perturbation.slope is not None:
            seen["slope"] = perturbation.slope
        self.run.seen.update(seen)

    def _cost(self, two: bool) -> float:
        """Passes spent, a forward counted as a third of one and each half of a backward as another."""
        if not two:
            return 1.0
        space = self.memory.space("perturbable", self.perturbable())
        truncated = sum(p.numel() for p in self._truncated(space)) / max(1, sum(p.numel() for p in space.parameters))
        samples = self.parts.samples
        second = 1.0 if samples is None or samples.gamma == 1.0 else 1 / 3 + samples.gamma
        return 1.0 - truncated / 3 + second

    # ------------------------------------------------------------------ refresh

    @torch.no_grad()
    def refresh(self, call: Callable[[], Any]) -> float:
        """Let the direction draft new values from gradients near ``w``; returns the passes it took."""
        self.run.expect("refresh()", Phase.IDLE)
        space, trainable = self.prepare(), self.trainable()
        weights, backup = space.weights(), self.memory.scratch("backup").vector(space)
        start = RandomState(kind.device for kind in space.kinds)
        calls = 0

        def gradient(v: Vector, h: float) -> Vector:
            nonlocal calls
            calls += 1
            space.copy_(weights, backup)
            space.add_(weights, v, h)
            clear(trainable)
            with start.replayed(), torch.enable_grad():
                call()
            if all(p.grad is None for p in trainable):
                raise RuntimeError("the closure left no gradient: call backward() on the loss in it")
            require_dense(trainable)
            for parameter in space.parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            return space.gradients()

        statistics = None if self.model is None else BatchStatistics(self.model)
        space.copy_(backup, weights)
        try:
            with evaluated([] if self.model is None else normalizers(self.model)):
                self.parts.direction.refresh(space, self.memory, gradient)
        except BaseException:
            self.memory.discard()
            raise
        finally:
            space.copy_(weights, backup)
            clear(trainable)
            if statistics is not None:
                statistics.restore()
        return float(calls)

    def _refuse_local_without_model(self, space: Space) -> None:
        if not self.local:
            return
        if any(kind.shard_groups for kind in space.kinds):
            raise RuntimeError(
                'perturbation="local" cannot be used with sharded parameters (FSDP): every worker holds only a part of '
                'each gradient, so there is no perturbation of its own. Use perturbation="global"'
            )
        if self.model is None and dist.is_initialized() and dist.get_world_size() > 1:
            raise RuntimeError(
                'perturbation="local" with several processes needs model=, to run pass one unsynchronised'
            )


def _enabled(scaler: Any) -> Any:
    """A loss scaler that is switched off is no scaler."""
    return scaler if scaler is not None and scaler.is_enabled() else None
