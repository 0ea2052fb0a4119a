"""The passes of a sharpness-aware step, and the state they share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from . import _checkpoint, _checks
from ._arithmetic import Space, Vector
from ._climb import Climb, Parts, climb
from ._directions import Ascent
from ._gradients import Consumed, EntryCheck, clear
from ._last import Last, Seen
from ._memory import Memory
from ._mixing import Mixing
from ._passes import BatchStatistics, RandomState, compiled, unsynchronised, without_gradient, workers
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
        """Steps taken so far."""
        return _checkpoint.step_count(self.base)

    @property
    def due(self) -> bool:
        """Whether the coming step is a sharpness-aware one."""
        return self.when is None or bool(self.when(self.step))

    def parameters(self) -> list[Tensor]:
        """All that the base optimizer has, frozen ones included."""
        return [p for group in self.base.param_groups for p in group["params"]]

    def trainable(self) -> list[Tensor]:
        """Those that can have a gradient."""
        return [p for p in self.parameters() if p.requires_grad]

    def perturbable(self) -> list[Tensor]:
        """Those that can be perturbed."""
        return self.trainable() if self.perturb is None else [p for p in self.perturb if p.requires_grad]

    def prepare(self) -> Space:
        """Bring the work buffers in line with the parameters; returns the space of what can be perturbed."""
        trainable, perturbable = self.trainable(), self.perturbable()
        if not trainable:
            raise RuntimeError("no parameter of this optimizer requires a gradient")
        self.memory.prepare(trainable, perturbable)
        return self.memory.space("perturbable", perturbable)

    def _with_gradient(self, role: str) -> Space:
        return self.memory.space(role, [p for p in self.trainable() if p.grad is not None])

    def _subset(self) -> list[bool]:
        count = len(self.perturbable())
        if self.parts.subset is None or not self.due:
            return [True] * count
        return self.parts.subset.mask(count, self.step)

    def _truncated(self) -> list[Tensor]:
        """Tensors whose clean gradient nobody needs: the backward is cut short there.

        Not where several processes exchange gradients in this pass, since they wait for all of them, nor where each of
        several micro-batches may go its own way through the model, nor in a compiled model, which would be compiled
        anew for each choice. The last tensor always stays, so that the loss has
        something to be differentiated by.
        """
        needed = self.parts.combine.mixes_gradient or self.parts.direction.remembers or self.parts.combine.products
        alone = (self.local or not dist.is_initialized()) and self.run.micro_batches == 1
        if needed or not alone or compiled(self.model):
            return []
        return [p for p, taken in zip(self.perturbable()[:-1], self._subset(), strict=False) if not taken]

    # ------------------------------------------------------------------ pass one

    @contextmanager
    def first_pass(self, scaler: Any, clear_consumed: bool) -> Iterator[None]:
        """Around the backward at ``w``."""
        run = self.run
        run.expect("clean()", Phase.IDLE, Phase.READY)
        space = self.prepare()
        if self.local:
            _checks.local_perturbation(space, self.model)
        self._start_pair(clear_consumed)
        run.phase, run.scaler, run.zeroed = Phase.CLEAN, _enabled(scaler), False
        entry = EntryCheck(self.trainable())
        try:
            if run.statistics is None and self.model is not None:
                run.statistics = BatchStatistics(self.model)
            run.random = RandomState(kind.device for kind in space.kinds) if self.replay_rng else None
            with ExitStack() as stack:
                if self.local:
                    stack.enter_context(unsynchronised(self.model))
                stack.enter_context(without_gradient(self._truncated()))
                yield
            _checks.some_gradient(self.trainable(), "first pass")
            _checks.dense_gradients(self.trainable())
            _checks.cleared(entry, run.zeroed)
            self._divide("first gradients")
        except BaseException:
            self.abandon()
            raise
        finally:
            entry.close()
        run.phase = Phase.CLEANED

    def _start_pair(self, clear_consumed: bool) -> None:
        """Deal with what an earlier pass or step left in ``.grad``."""
        run = self.run
        if run.phase is Phase.READY and self.local:
            self._set_aside()
        elif run.phase is Phase.READY:  # that step was never taken
            self.abandon()
        elif clear_consumed and run.consumed is not None and run.consumed.still_there():
            clear(self.parameters())

    # ------------------------------------------------------------------ pass two

    @contextmanager
    def second_pass(self, scaler: Any, clear_consumed: bool) -> Iterator[None]:
        """Around the backward at ``w + eps``: the weights are back, bit for bit, however it is left."""
        run = self.run
        run.expect("perturbed()", Phase.IDLE, Phase.CLEANED, Phase.READY)
        space, due = self.prepare(), self.due
        two = run.phase is Phase.CLEANED or (due and self.parts.direction.passes == 2)
        if run.phase is not Phase.CLEANED:
            self._start_bare(space, _enabled(scaler), two, clear_consumed)
        elif run.scaler is not _enabled(scaler):
            raise RuntimeError("clean() and perturbed() must be given the same scaler, and scaler.step(opt) be called")
        entry, first_ever = EntryCheck([] if two else self.trainable()), not run.warm
        run.phase, run.zeroed = Phase.PERTURBED, False
        try:
            combine = self.parts.combine if due and two else None
            mixing = Mixing(combine, self.memory, self.step, self._scale() if two else 1.0)
            after_first = None if self.model is None else BatchStatistics(self.model)
            run.statistics = run.statistics or after_first
            with torch.no_grad():
                if two:
                    self._unscale_first()
                    mixing.keep([p for p in self.trainable() if p.grad is not None])
                skip = self._perturb(mixing, two) if due else None
                if two:
                    run.carry = mixing.hand_over(self.parameters(), run.micro_batches, skip)
                    if run.carry is not None and first_ever:
                        run.carry.watch_values()
            with ExitStack() as stack:
                if run.random is not None and two:
                    stack.enter_context(run.random.replayed())
                if self._combines_alone(mixing):
                    stack.enter_context(unsynchronised(self.model))
                yield
            with torch.no_grad():
                self._restore()
                self._finish(mixing, skip)
            _checks.cleared(entry, run.zeroed)
        except BaseException:
            with torch.no_grad():
                self._restore()
            self.abandon()
            raise
        finally:
            entry.close()
        if two and after_first is not None:
            after_first.restore()
        run.cost += self._cost(two)
        run.pairs += 1
        run.phase = Phase.READY

    def _combines_alone(self, mixing: Mixing) -> bool:
        """Whether each worker mixes gradients by coefficients of its own, so that only the mixture may be averaged."""
        return self.local and mixing.constant is None and workers(self.model) is not None

    def _start_bare(self, space: Space, scaler: Any, two: bool, clear_consumed: bool) -> None:
        """A perturbed pass that no clean() came before: a one-pass step, or a bare backward as pass one."""
        if two:
            _checks.bare_pass(self)
            _checks.dense_gradients(self.trainable())
        else:
            if self.local:
                _checks.local_perturbation(space, self.model)
            self._start_pair(clear_consumed)
        self.run.scaler = scaler

    def _ascent(self, two: bool) -> Ascent | None:
        """What the direction may look at, or None if no parameter takes part in this step."""
        direction, memory, base = self.parts.direction, self.memory, self.base
        chosen = zip(self.perturbable(), self._subset(), strict=True)
        members = [p for p, taken in chosen if taken and direction.takes_part(p, memory, base)]
        if not members:
            return None
        space = memory.space("participants", members)
        g: Vector | None = space.gradients() if two else None
        g_norm = None if g is None else space.norm(g)
        return Ascent(self.step, space, memory, g, g_norm, base)

    def _perturb(self, mixing: Mixing, two: bool) -> Tensor | None:
        """Move the weights to ``w + eps``; returns the reason not to have (1 at a non-finite gradient), if any moved.

        Nothing here may outlive the call but numbers: a reference to ``g`` would keep it in memory over the next pass.
        """
        ascent = self._ascent(two)
        if ascent is None:
            return None
        space, weights = ascent.space, ascent.space.weights()
        climbed = climb(self.parts, ascent, mixing.adds_in_place or bool(self.parts.direction.remembers))
        space.copy_(self.memory.scratch("backup").vector(space), weights)
        self.run.perturbed = space
        space.climb_(weights, climbed.u, climbed.coefficient, climbed.skip, seed=ascent.step)
        torch.clear_autocast_cache()  # an autocast around the whole step keeps low-precision copies of the weights
        self.parts.direction.learn_before(ascent)
        self._note(ascent, climbed)
        self._look_for_a_scaler(ascent)
        return climbed.skip

    def _look_for_a_scaler(self, ascent: Ascent) -> None:
        """On the first step only, since it waits for a value: are these gradients scaled, and nobody said so?"""
        if not self.run.warm and ascent.g_norm is not None and self.run.scaler is None:
            _checks.unscaled(float(ascent.g_norm))
        self.run.warm = True

    def _restore(self) -> None:
        space, self.run.perturbed = self.run.perturbed, None
        if space is not None:
            space.copy_(space.weights(), self.memory.scratch("backup").vector(space))
            torch.clear_autocast_cache()

    def _finish(self, mixing: Mixing, skip: Tensor | None) -> None:
        """Weights are back: check, learn, combine."""
        run = self.run
        carried, run.carry = run.carry, None
        if carried is not None:
            carried.close()
            if not carried.touched() and all(p.grad is None or p in carried.held for p in self.trainable()):
                clear(self.parameters())  # nothing was added to what was carried
            else:
                carried.merge()
        _checks.some_gradient(self.trainable(), "second pass")
        _checks.dense_gradients(self.trainable())
        self._divide("second gradients")
        teachers = [p for p in self.perturbable() if p.grad is not None]
        if self.due and self.parts.direction.remembers and teachers:
            space = self.memory.space("teachers", teachers)
            self.parts.direction.learn_after(space, self.memory, space.gradients())
        mixing.mix(self.trainable())
        if self._combines_alone(mixing):
            self._average_over_workers()
        if run.set_aside:
            self._bring_back()
        if run.scaler is not None and skip is not None:
            # An overflow in pass one must reach the scaler, on every worker, whatever pass two made of it.
            if self.local and workers(self.model) is not None:
                dist.all_reduce(skip, dist.ReduceOp.MAX, group=workers(self.model))
            first = self._with_gradient("second gradients").gradients()[0][0]
            first.mul_(torch.where(skip.to(first.device) > 0, float("nan"), 1.0))

    # ------------------------------------------------------------------ scale and number

    def _divide(self, role: str) -> None:
        """From a sum over micro-batches to their mean."""
        if self.run.micro_batches > 1:
            space = self._with_gradient(role)
            with torch.no_grad():
                space.scale_(space.gradients(), 1.0 / self.run.micro_batches)

    def _unscale_first(self) -> None:
        if self.run.scaler is not None:
            space = self._with_gradient("first gradients")
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
        """Keep the finished pairs' gradient apart while the next pair runs (``perturbation="local"``)."""
        for parameter in self.trainable():
            if parameter.grad is not None:
                # DistributedDataParallel may own this memory (gradient_as_bucket_view).
                grad = parameter.grad.clone() if dist.is_initialized() else parameter.grad
                self.run.set_aside[parameter] = grad
                parameter.grad = None

    def _bring_back(self) -> None:
        """The mean over all finished pairs, in ``.grad``."""
        run = self.run
        for parameter in run.set_aside:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        space = self._with_gradient("second gradients")
        space.scale_(space.gradients(), 1.0 / (run.pairs + 1))
        earlier = self.memory.space("set aside", list(run.set_aside))
        means = earlier.vector(list(run.set_aside.values()))
        earlier.add_(earlier.gradients(), means, run.pairs / (run.pairs + 1))
        run.set_aside.clear()

    def _average_over_workers(self) -> None:
        """What DistributedDataParallel does in a backward, for gradients combined on each worker by itself."""
        group = workers(self.model)
        space, buffer = self._with_gradient("second gradients"), self.memory.product()
        if len(space.parameters) < len(buffer.space.parameters):
            buffer.clear()
        space.copy_(buffer.vector(space), space.gradients())
        for flat in buffer.flat.values():
            dist.all_reduce(flat, group=group)
        space.copy_(space.gradients(), buffer.vector(space))
        space.scale_(space.gradients(), 1.0 / dist.get_world_size(group))

    # ------------------------------------------------------------------ the end of a step

    @torch.no_grad()
    def take(self, scale: Tensor | None, found_inf: Tensor | None) -> None:
        """The base step, and with it everything drafted on the way."""
        run = self.run
        _checks.same_scaler(run.scaler, found_inf)
        if found_inf is not None and bool(found_inf > 0):  # the scaler itself waits for this value
            self.abandon()
            return
        try:
            space = self._with_gradient("second gradients")
            if scale is not None:
                space.scale_(space.gradients(), 1.0 / scale)
            if self.max_norm is not None:
                norm = space.norm(space.gradients())
                space.scale_(space.gradients(), (self.max_norm / (norm + 1e-6)).clamp(max=1.0))
            self.base.step()
            torch.clear_autocast_cache()
        except BaseException:
            self.abandon()
            raise
        self.memory.commit()
        _checkpoint.set_step_count(self.base, self.step + 1)
        cost = run.cost / run.pairs + run.refresh_cost
        run.last = Last({**run.seen, "cost": cost}, like=space.like)
        run.consumed, run.warm = Consumed(self.parameters()), True
        run.reset()

    def abandon(self) -> None:
        """None of the step: drafts, BatchNorm statistics and gradients go."""
        if self.run.statistics is not None:
            self.run.statistics.restore()
        if self.run.carry is not None:
            self.run.carry.close()
        self.memory.discard()
        clear(self.parameters())
        self.run.reset()

    def _note(self, ascent: Ascent, climbed: Climb) -> None:
        """Remember what ``opt.last`` will tell."""
        values: dict[str, Seen | None] = {"grad_norm": ascent.g_norm, "slope": climbed.slope, "rho": climbed.rho}
        self.run.seen.update({name: value for name, value in values.items() if value is not None})
        self.run.seen.update(sigma=climbed.sigma, capped=climbed.capped)

    def _cost(self, two: bool) -> float:
        """Passes spent, a forward counted as a third of one and each half of a backward as another."""
        if not two:
            return 1.0
        all_of_it = sum(p.numel() for p in self.perturbable())
        truncated = sum(p.numel() for p in self._truncated()) / max(1, all_of_it)
        samples = self.parts.samples
        second = 1.0 if samples is None or samples.gamma == 1.0 else 1 / 3 + samples.gamma
        return 1.0 - truncated / 3 + second

    def __getstate__(self) -> dict[str, object]:
        """Copies and pickles start between steps."""
        return {**self.__dict__, "run": Run()}


def _enabled(scaler: Any) -> Any:
    """A loss scaler that is switched off is no scaler."""
    return scaler if scaler is not None and scaler.is_enabled() else None
