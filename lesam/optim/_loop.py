"""The passes of a sharpness-aware step, in the order of its equation.

::

    g              = gradient at w                        first_pass
    u              = direction(g)                         perturb, climb
    eps_hat, slope = P u / sqrt(u' P u), <g, eps_hat>
    rho            = radius(slope, step)
    g_hat          = gradient at w + rho * eps_hat        second_pass
    a, b           = combine(<g,g>, <g,g_hat>, <g_hat,g_hat>)
    base step with a * g_hat + b * g                      take
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from . import _checks, _scaling
from ._arithmetic import Space
from ._bases import Bases
from ._beside import descend
from ._buffers import Buffers
from ._climb import Parts
from ._gates import opened
from ._gradient_sum import PassGradients, clear, held
from ._last import Last
from ._leftovers import Leftover, UsedUp
from ._memory import Memory
from ._mixing import Mixing, divide, mean_with, mixing
from ._perturb import perturb
from ._replay import RandomState
from ._scaling import LossScale
from ._step import SETTLED, History, Phase, Step, one_pass_at_a_time
from ._truncation import truncate, without_gradient
from ._workers import average, refuse_drift, refuse_flattened, refuse_local, unsynchronised, workers
from .schedules import Predicate


@dataclass
class Loop:
    """Everything behind the optimizer's interface. Proxies of the optimizer share this one object."""

    bases: Bases
    parts: Parts
    model: nn.Module | None
    perturb: list[Tensor] | None
    when: Predicate | None
    generators: Sequence[torch.Generator] | None  # replayed beside the global ones; None: nothing is replayed
    keep_buffers: Callable[[], Buffers] | None
    local: bool
    max_norm: float | None
    memory: Memory = field(default_factory=Memory)
    step: Step = field(default_factory=Step)
    history: History = field(default_factory=History)
    _asked: tuple[int, bool] = (-1, True)  # the step that `when` was last asked for, and its answer

    # ------------------------------------------------------------------ who takes part

    @property
    def due(self) -> bool:
        """Whether the coming step is one of the method's own, and no plain base step."""
        if self.when is None:
            return True
        number = self.bases.steps
        if self._asked[0] != number:  # once a step: a predicate may draw random numbers
            self._asked = number, bool(self.when(number))
        return self._asked[1]

    @property
    def climbs(self) -> bool:
        """Whether the coming step perturbs the weights."""
        return self.due and not self.parts.combine.rests(self.bases.steps)

    @property
    def passes(self) -> int:
        """Passes of the coming step, or of the one under way: the most it can take, until a gate has decided."""
        if not self.climbs or self.step.closed:
            return 1
        return self.parts.direction.passes + (self.parts.combine.mirror(self.bases.steps) is not None)

    def trainable(self) -> list[Tensor]:
        """Parameters that can have a gradient."""
        return [p for p in self.bases.parameters() if p.requires_grad]

    def perturbable(self) -> list[Tensor]:
        """Parameters that can be perturbed."""
        return self.trainable() if self.perturb is None else [p for p in self.perturb if p.requires_grad]

    def prepare(self) -> Space:
        """Bring the work buffers in line with the parameters; returns the space of what can be perturbed."""
        trainable, perturbable = self.trainable(), self.perturbable()
        if not trainable:
            raise RuntimeError(f"no parameter of this optimizer requires a gradient{_checks.replaced_by_deepspeed()}")
        self.bases.refuse_evaluating()
        if self.history.fresh:
            refuse_flattened(trainable, self.model)
            _checks.initialised(trainable)
        self.memory.prepare(trainable, perturbable)
        return self.memory.space("perturbable", perturbable)

    def note_start(self) -> None:
        """Write the numbers a part keeps into every group, as they are, so that there is a place to load them to."""
        if self.parts.gate is not None:
            self.bases.note(self.bases.noted(self.parts.gate.start))

    def _with_gradient(self, role: str) -> Space:
        return self.memory.space(role, [p for p in self.step.trainable if p.grad is not None])

    def _open(self, what: str, scaler: Any) -> Step:
        """The step that a pass begins: a new one, or the next of several local pairs."""
        step = self.step
        step.expect(what, Phase.IDLE, Phase.READY)
        space = self.prepare()
        if self.local:
            refuse_local(space, self.model)
        if step.phase is Phase.READY and self.local:
            step.mean = held(step.trainable)
        else:
            self.abandon()  # a step that was never taken
            step = self._new_step()
            if self.history.used_up is not None and self.history.used_up.unchanged(step.trainable):
                clear(self.bases.parameters())
        step.scale = LossScale(scaler)
        return step

    def _new_step(self) -> Step:
        number, sharp, perturbable = self.bases.steps, self.climbs, self.perturbable()
        subset = self.parts.subset if sharp else None
        chosen = perturbable if subset is None else subset.of(perturbable, number)
        self.step = Step(number, sharp, self.trainable(), perturbable, chosen, rests=self.due and not sharp)
        self.step.undo.callback(clear, self.bases.parameters())
        self.step.undo.callback(self.memory.discard)
        return self.step

    # ------------------------------------------------------------------ g = gradient at w

    @contextmanager
    def first_pass(self, scaler: Any = None, count: int = 1, share: float = 1.0) -> Iterator[None]:
        """Around the backward at ``w``, a sum over ``count`` micro-batches, of a ``share`` of the batch."""
        step = self._open("clean()", scaler)
        step.share, step.truncated = share, 0.0
        with self.whole_or_nothing():
            before = self._note_buffers(step)
            if self.generators is not None:
                step.random = RandomState(dict.fromkeys(p.device for p in step.perturbable), self.generators)
            with ExitStack() as around:
                leftover = Leftover(self.memory, step.trainable)
                around.callback(leftover.close)
                gradients = self._gradients(around, step, exact=self.parts.radius.needs_slope and step.sharp)
                if self.local:
                    around.enter_context(unsynchronised(self.model))
                around.enter_context(without_gradient(truncate(self, step, count)))
                around.enter_context(one_pass_at_a_time(self))
                step.phase = Phase.CLEAN
                yield
                _checks.passed(leftover, step.trainable, "first pass")
                gradients.settle()
            if before is not None and share < 1:
                before.restore()  # statistics follow the pass that sees the whole batch
            divide(self._with_gradient("divided"), count)
            climbs = self.parts.gate is None or opened(self.parts.gate, self, step)
            step.phase = Phase.CLEANED
            if not climbs:
                self._close(step)
            step.first = {p: (p.grad, p.grad._version) for p in step.trainable if p.grad is not None}

    @torch.no_grad()
    def _close(self, step: Step) -> None:
        """The step takes no second pass: ``g`` is what it descends with."""
        step.closed, step.rests, step.sharp = True, step.rests or step.sharp, False
        self.history.fresh = False
        self._gather(step, workers(self.model) if self.local else None)
        step.finish_pair(two=False, samples=None)

    def _gradients(self, around: ExitStack, step: Step, exact: bool) -> PassGradients:
        """Collects the gradients of a pass until ``around`` is left."""
        look = self.history.fresh and not (step.phase is Phase.CLEANED and self.parts.radius.needs_slope)
        step.gradients = PassGradients(self.memory, step.trainable, exact, look)
        around.callback(setattr, step, "gradients", None)
        around.callback(step.gradients.close)
        return step.gradients

    @contextmanager
    def collecting(self) -> Iterator[PassGradients]:
        """The gradients of the pass under way, or (in a refresh) of one of its own."""
        if self.step.gradients is not None:
            yield self.step.gradients
            return
        gradients = PassGradients(self.memory, self.trainable(), exact=False, look=False)
        try:
            yield gradients
            gradients.settle()
        finally:
            gradients.close()

    def rescale(self, factor: float) -> None:
        """Multiply the gradients of the pass under way: a framework has divided its losses by another number."""
        if self.step.gradients is not None:
            self.step.gradients.rescale(factor)

    def _note_buffers(self, step: Step) -> Buffers | None:
        """The model's buffers as they are; the first of a step are what an abandoned step returns to."""
        now = None if self.keep_buffers is None else self.keep_buffers()
        if now is not None and step.buffers is None:
            step.buffers = now
            step.undo.callback(now.restore)
        return now

    # ------------------------------------------------------------------ g_hat = gradient at w + rho * eps_hat

    @contextmanager
    def second_pass(self, scaler: Any = None, count: int = 1) -> Iterator[None]:
        """Around the backward at ``w + eps``: the weights are back, bit for bit, however it is left."""
        self.step.expect("perturbed()", Phase.IDLE, Phase.CLEANED, Phase.READY)
        self.bases.refuse_evaluating()
        if self.step.closed and not self.local:
            self.step.reopen()
        two = self.step.phase is Phase.CLEANED or self.passes > 1
        step = self._open_second(scaler, two)
        with self.whole_or_nothing():
            combine, scale = (self.parts.combine, step.scale.factor()) if step.sharp and two else (None, 1.0)
            mix = mixing(combine, self.memory, step.number, scale)
            mix.workers = self._apart(mix)
            step.mix = mix
            after_first = self._note_buffers(step)
            with ExitStack() as around:
                leftover = Leftover(self.memory, [] if two else step.trainable)
                around.callback(leftover.close)
                gradients = self._gradients(around, step, exact=False)
                with torch.no_grad():
                    skip = self._move(around, step, mix, two, count)
                self.history.fresh = False
                if two:
                    gradients.wait()
                if step.random is not None and two and step.share == 1:  # a part draws fewer numbers, and others
                    around.enter_context(step.random.replayed())
                if mix.workers is not None:
                    around.enter_context(unsynchronised(self.model))
                around.enter_context(one_pass_at_a_time(self))
                step.phase = Phase.PERTURBED
                yield
                _checks.passed(leftover, step.trainable, "second pass")
                if not gradients.settle() and self.local:
                    refuse_drift(self.model)
            with torch.no_grad():
                divide(self._with_gradient("divided"), count)
                self._combine(step, mix, skip)
        if two and after_first is not None and step.share == 1:
            after_first.restore()
        if two and step.share < 1:  # the backward of a part is the caller's to shorten
            step.truncated = step.left_out()
        step.finish_pair(two, self.parts.samples)

    def _open_second(self, scaler: Any, two: bool) -> Step:
        """The step a perturbed pass belongs to: clean()'s, that of a bare backward, or a one-pass step."""
        step = self.step
        if step.phase is Phase.CLEANED:
            if step.scale != LossScale(scaler):
                raise RuntimeError("clean() and perturbed() must be given the same scaler, and scaler.step(opt) called")
            _checks.same_between_passes(self)
            return step
        if not two:
            return self._open("perturbed()", scaler)
        _checks.bare_pass(self)
        self.prepare()
        step = self._new_step()
        _checks.dense_gradients(step.trainable)
        step.scale = LossScale(scaler)
        return step

    def _move(self, around: ExitStack, step: Step, mix: Mixing, two: bool, count: int) -> Tensor | None:
        """To ``w + eps``, with what the backward is to be added to in ``.grad``.

        Returns the reason not to have moved (1 at a non-finite gradient), if anything was to be moved.
        """
        first = self._with_gradient("first gradients")
        if two:
            step.reached = first.parameters
            step.scale.unscale(first)
            mix.look(first)
        skip = perturb(self, around, step, mix.needs_gradient) if step.sharp else None
        if two:
            mix.hand_over(first, count, skip)
        return skip

    # ------------------------------------------------------------------ a * g_hat + b * g

    def _apart(self, mix: Mixing) -> Any:
        """Workers that each mix gradients by coefficients of their own: only the mixture may be averaged."""
        constant = mix.combine.constant(self.step.number)
        return workers(self.model) if self.local and constant is None else None

    def _combine(self, step: Step, mix: Mixing, skip: Tensor | None) -> None:
        """Learn from ``g_hat``, mix, and take the mean with the gradients of earlier pairs."""
        teachers = [p for p in step.perturbable if p.grad is not None]
        if step.sharp and self.parts.direction.remembers and teachers:
            space = self.memory.space("teachers", teachers)
            direction, length_matters = self.parts.direction, self.parts.radius.needs_slope
            scale = step.scale.factor() if length_matters or direction.averages else 1.0
            direction.learn_after(space, self.memory, space.gradients(), step.number, scale)
        mix.mix(step.trainable, step.pairs)
        step.beside = mix.beside
        self._gather(step, mix.workers)
        if step.scale.given and skip is not None:
            if self.local and workers(self.model) is not None:
                dist.all_reduce(skip, dist.ReduceOp.MAX, group=workers(self.model))
            _scaling.poison(self._with_gradient("second gradients"), skip)

    def _gather(self, step: Step, group: Any) -> None:
        """The mean over workers, what earlier steps have taught, and the mean with earlier pairs of this step."""
        if group is not None:
            average(self._with_gradient("second gradients"), self.memory, group)
        if step.rests:
            self.parts.combine.reuse(self._with_gradient("second gradients"), self.memory, step.number)
        if step.mean:
            mean_with(step.mean, step.pairs, self.memory, step.trainable)
            step.mean = {}

    # ------------------------------------------------------------------ the end of a step

    @torch.no_grad()
    def take(self, scale: Tensor | None, found_inf: Tensor | None) -> bool:
        """The base step, and with it everything drafted on the way; False if a loss scaler skips it."""
        step = self.step
        self.bases.refuse_evaluating()
        step.scale.refuse_other(found_inf)
        if found_inf is not None and bool(found_inf > 0):  # the scaler itself waits for this value
            self.abandon()
            return False
        with self.whole_or_nothing():
            space = self._with_gradient("second gradients")
            if scale is not None:
                space.scale_(space.gradients(), 1.0 / scale)
            descend(self, step, space)
            step.undo.pop_all()
            self.step = Step()
        torch.clear_autocast_cache()
        self.memory.commit()
        self.bases.set_steps(step.number + 1)
        self.bases.note(step.noted)
        cost = step.cost / step.pairs + step.refresh_cost
        self.history = History(
            last=Last({**step.seen, "cost": cost}, like=space.like),
            fresh=False,
            used_up=UsedUp(self.memory, space.parameters),
            with_gradient=self.history.always_with_gradient(space.parameters),
        )
        return True

    def switch(self, mode: str) -> None:
        """Between the weights that are trained (``train``) and those to evaluate or save (``eval``)."""
        if mode == "train" and self.step.phase is Phase.PERTURBED and not self.bases.evaluating:
            return  # said again before each forward, as the Hugging Face Trainer does
        self.step.expect(f"{mode}()", *SETTLED)
        self.bases.switch(mode)

    def abandon(self) -> None:
        """None of the step: whatever it has done to the model and the memory is undone."""
        step, self.step = self.step, Step()
        step.undo.close()

    @contextmanager
    def whole_or_nothing(self) -> Iterator[None]:
        """A part of a step: an exception inside abandons all of it."""
        try:
            yield
        except BaseException:
            self.abandon()
            raise

    def __getstate__(self) -> dict[str, object]:
        """Copies and pickles start between steps."""
        return {**self.__dict__, "step": Step(), "history": History()}
