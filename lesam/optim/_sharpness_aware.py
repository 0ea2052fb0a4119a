"""The optimizer: the loop of sharpness-aware training behind ``torch.optim``'s interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from . import _checkpoint, _checks
from ._bases import Bases
from ._buffers import keeper
from ._checkpoint import State
from ._climb import Parts
from ._closures import Closure, SampleLosses, SamplePasses, as_list, as_scalar, call, call_for_hooks, run_passes
from ._combiners import Combiner, as_combiner, perturbed
from ._directions import Direction, Gradient
from ._gates import Gate
from ._last import Last
from ._leftovers import UsedUp
from ._loop import Loop
from ._metrics import Euclidean, Metric
from ._radii import Fixed, Radius
from ._refresh import refresh
from ._replay import generators_of
from ._savers import BatchPart, RandomSubset, TopSamples
from ._scaling import refuse_unscaled, tell_of_skip
from ._step import SETTLED, Phase
from ._workers import refuse_flattened
from .schedules import Predicate, plain


class SharpnessAware(torch.optim.Optimizer):
    r"""A base optimizer fed with gradients taken uphill.

    Every step runs one loop, and the published methods differ only in the parts that fill its slots::

        g              = gradient at w                        (not for one-pass methods)
        u              = direction(g)                         which vector to climb
        eps_hat, slope = P u / sqrt(u' P u), <g, eps_hat>     P: the metric
        rho            = radius(slope, step)                  how far: fixed, or from a loss budget
        g_hat          = gradient at w + rho * eps_hat        w comes back bit for bit, whatever happens
        a, b           = combine(<g,g>, <g,g_hat>, <g_hat,g_hat>)
        base step with a * g_hat + b * g

    A step is a transaction: an exception in a pass, or a loss scaler that skips, leaves weights, remembered values and
    BatchNorm statistics as they were.

    Args:
        base: Any ``torch.optim.Optimizer``; ``opt.param_groups is base.param_groups``, so schedulers work on either. Or
            a list of them over disjoint parameters (Muon for matrices, AdamW for the rest): one norm, one perturbation.
        direction: Which vector to climb.
        metric: In which geometry.
        radius: How far.
        combine: Which mixture of the two gradients to descend with; also any ``(gg, gh, hh) -> (a, b)``.
        subset: Climb on a random subset of the tensors only.
        samples: Take the second gradient on the sharpest samples only.
        part: Run the first pass on a part of the batch only.
        gate: Decides after the first pass of a step whether it climbs, which waits for the device once; default always.
        model: If given, BatchNorm running statistics follow the clean pass only (or the only pass of a one-pass
            method, or the second one where the first is on a part of the batch), and a DistributedDataParallel model
            can run the first pass without communication.
        buffers: Which buffers of ``model`` the perturbed pass of a two-pass step must not move: ``"batchnorm"``,
            ``"all"`` (spectral norms, codebooks, queues, ...), or a list of names as in ``model.named_buffers()``.
        perturb: The parameters to perturb; default all. Others are still trained. Norm layers only:
            ``perturb=lesam.norm_parameters(model)``.
        when: Predicate on the step; where it is false, a plain base step at one pass.
        replay_rng: Both passes see the same random numbers (dropout masks): torch's, Python's and NumPy's global
            generators. A list of ``torch.Generator`` replays these as well. A first pass on a part of the batch has
            numbers of its own.
        perturbation: ``"global"``, one for the whole batch, or ``"local"``, one for each worker and micro-batch.
        max_norm: Clip the combined gradient to this norm, just before the base step.

    Example:
        >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> base = torch.optim.SGD([w], lr=0.1)
        >>> opt = SharpnessAware(base, radius=Fixed(0.5))
        >>> def closure():
        ...     opt.zero_grad()
        ...     loss = (w * w).sum() / 2
        ...     loss.backward()
        ...     return loss
        >>> opt.step(closure).item()  # the loss before the step
        12.5
        >>> w.detach()  # w - 0.1 * (w + 0.5 * w / |w|)
        tensor([2.6700, 3.5600])
    """

    # GradScaler then always calls step(), with the scale and whether there was an overflow: a skip can be undone.
    _step_supports_amp_scaling = True
    _loop: Loop

    def __init__(
        self,
        base: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        direction: Direction | None = None,
        metric: Metric | None = None,
        radius: Radius | None = None,
        combine: Combiner | Callable[..., Any] = perturbed,
        subset: RandomSubset | None = None,
        samples: TopSamples | None = None,
        gate: Gate | None = None,
        part: BatchPart | None = None,
        model: nn.Module | None = None,
        buffers: str | Sequence[str] = "batchnorm",
        perturb: Iterable[Tensor] | None = None,
        when: Predicate | None = None,
        replay_rng: bool | Sequence[torch.Generator] = True,
        perturbation: str = "global",
        max_norm: float | None = None,
    ) -> None:
        bases = Bases(base)
        parts = Parts(
            direction=Gradient() if direction is None else direction,
            metric=Euclidean() if metric is None else metric,
            radius=Fixed(0.05) if radius is None else radius,
            combine=as_combiner(combine),
            subset=subset,
            samples=samples,
            gate=gate,
            part=part,
        )
        parts.check_bases(bases)
        _checks.options(model, when, perturbation)
        refuse_flattened(bases.parameters(), model)
        loop = Loop(
            bases=bases,
            parts=parts,
            model=model,
            perturb=None if perturb is None else _checks.members(perturb, bases),
            when=when,
            generators=generators_of(replay_rng),
            keep_buffers=keeper(model, buffers),
            local=perturbation == "local",
            max_norm=None if max_norm is None else plain("max_norm", max_norm, open_low=True),
        )
        loop.note_start()
        # Not Optimizer.__init__, which would copy the groups: ours are the base optimizer's own, always.
        super().__setstate__({"_loop": loop, "defaults": bases.defaults})

    # ------------------------------------------------------------------ what it is made of

    @property
    def bases(self) -> tuple[torch.optim.Optimizer, ...]:
        """The optimizers that take the steps."""
        return self._loop.bases.all

    @property
    def base(self) -> torch.optim.Optimizer:
        """The optimizer that takes the steps, where it is one."""
        if not self._loop.bases.single:
            raise AttributeError  # which asks __getattr__
        return self.bases[0]

    @property
    def parts(self) -> Parts:
        """The filled slots of the loop."""
        return self._loop.parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The base optimizer's groups, the very same list; of several bases, the same groups in a list made anew."""
        return self._loop.bases.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.base.param_groups = groups

    @property
    def state(self) -> Any:
        """The base optimizer's state, the very same dict; with the method's own buffers if it remembers any."""
        loop = self._loop
        if loop.parts.remembers or not loop.bases.single:
            return State(loop.bases, loop.memory)
        return loop.bases.all[0].state

    @state.setter
    def state(self, state: Any) -> None:
        self.base.state = state
        if not state:
            self._loop.memory.forget()

    @property
    def last(self) -> Last:
        """What the last step saw, as 0-d tensors."""
        return self._loop.history.last

    @property
    def perturbation(self) -> str:
        """``"global"`` or ``"local"``."""
        return "local" if self._loop.local else "global"

    @property
    def replay_rng(self) -> bool:
        """Whether both passes see the same random numbers."""
        return self._loop.generators is not None

    @property
    def perturbable(self) -> list[Tensor]:
        """The parameters that a step may perturb, those of ``perturb=`` that are trained: what a first pass is for.

        Where a step does not descend with the first gradient, that backward may leave the others' gradients out,
        ``loss.backward(inputs=opt.perturbable)`` (on one device: processes wait for all gradients).
        """
        return self._loop.perturbable()

    @property
    def steps(self) -> int:
        """Steps taken so far: what schedules and ``when`` are asked with."""
        return self._loop.bases.steps

    @property
    def refresh_due(self) -> bool:
        """Whether the coming step wants ``opt.refresh(closure)`` first, where no closure does it."""
        return self._loop.climbs and self.parts.direction.refresh_due(self.steps)

    @property
    def passes(self) -> int:
        """Closure calls of the coming step, refreshes not counted.

        Where a gate decides, the most there can be; after ``clean()``, how many the step takes.
        """
        return self._loop.passes

    # ------------------------------------------------------------------ with a closure

    def step(
        self,
        closure: Closure | Sequence[Closure] | None = None,
        *,
        ascent: Closure | Sequence[Closure] | None = None,
        sample_losses: SampleLosses | None = None,
        share: float | None = None,
    ) -> Any:
        """Take one step; returns the clean loss (the only one of the whole batch, where there is no clean one).

        Args:
            closure: Clears the gradients, computes the loss, calls ``backward()`` and returns the loss. Or a list of
                these, one for each micro-batch, each of its own undivided mean loss. Without it, takes the step that
                ``perturbed()`` has prepared; a closure given then is called once, for its hooks.
            ascent: For the first pass, if its loss is another one. Methods that descend with the first gradient as well
                (LE-SAM+, GSAM, WSAM, CR-SAM, LookSAM) then descend with that of the other loss.
            sample_losses: ``fn(indices=None)`` returning the loss of each sample (of those samples), instead of a
                closure: for :class:`TopSamples`.
            share: Of the batch that ``ascent`` is on, for :class:`BatchPart`; without ``ascent`` it is all of it.
        """
        loop = self._loop
        loop.step.expect("step()", Phase.IDLE, Phase.READY)
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if loop.step.phase is Phase.READY:
            if share is not None:
                raise ValueError(f"share={share!r} comes after the passes: say it before, `with opt.clean(share=...):`")
            if ascent is not None or sample_losses is not None:
                late = "ascent=" if ascent is not None else "sample_losses="
                raise ValueError(f"{late} comes after the passes, and nothing would call it: leave it out")
            loss = None if closure is None else call_for_hooks(loop, as_list("closure", closure))
            loop.step.loss = None if loss is None else as_scalar(loss)
        elif sample_losses is not None:
            if closure is not None or ascent is not None or share is not None:
                raise ValueError("give either closure (and ascent, share) or sample_losses, not both")
            passes = SamplePasses(sample_losses, loop.parts.samples, self.zero_grad)
            loss = run_passes(loop, [passes.first], [passes.second])
        elif closure is not None:
            _checks.no_sample_choice(loop)
            second = as_list("closure", closure)
            _checks.no_other_ascent(loop, ascent)
            if share is not None and ascent is None:
                raise ValueError(f"share={share!r} says how much of the batch ascent= is on: give both, or neither")
            first = second if ascent is None else as_list("ascent", ascent)
            loss = run_passes(loop, first, second, _checks.share_of_the_batch(loop, share, ascent))
        else:
            return _checkpoint.allocate(loop)
        if not loop.take(scale, found_inf):
            tell_of_skip(self.__dict__.get("step"))
        return loss

    # ------------------------------------------------------------------ without a closure

    def clean(self, scaler: Any = None, *, share: float | None = None) -> AbstractContextManager[None]:
        """Around the first backward, at ``w``: records what the second pass has to replay.

        Optional: after a bare ``backward()`` dropout is not replayed, and BatchNorm statistics cannot be undone.

        Args:
            scaler: A ``torch.amp.GradScaler``, if the loss is scaled.
            share: Of the batch that this pass is on, for :class:`BatchPart`; default all of it.
        """
        _checks.no_sample_choice(self._loop)
        _checks.two_passes_at_most(self._loop)
        return self._loop.first_pass(scaler, share=_checks.share_of_the_batch(self._loop, share))

    def perturbed(self, scaler: Any = None) -> AbstractContextManager[None]:
        """Around the second (or only) backward, at ``w + eps``; leaves the combined gradient in ``.grad``.

        Args:
            scaler: A ``torch.amp.GradScaler``, if the loss is scaled; then step with ``scaler.step(opt)``.
        """
        _checks.no_sample_choice(self._loop)
        _checks.two_passes_at_most(self._loop)
        refuse_unscaled(scaler, self)
        return self._loop.second_pass(scaler)

    def refresh(self, closure: Closure | Sequence[Closure]) -> None:
        """Renew Eigen-SAM's eigenvector by power iteration with the closure's gradients, between steps."""
        self._loop.step.expect("refresh()", Phase.IDLE)
        closures = as_list("closure", closure)
        refresh(self._loop, lambda: call(self._loop, closures))
        self._loop.memory.commit()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and drop a step that was prepared but not taken."""
        loop = self._loop
        if loop.step.phase in (Phase.CLEANED, Phase.READY):
            loop.abandon()
        for base in self.bases:
            base.zero_grad(set_to_none=set_to_none)
        if loop.step.phase is Phase.IDLE and not set_to_none:
            loop.history.used_up = UsedUp(loop.memory, loop.trainable(), zeros=True)  # which the next pass may drop

    def __getattr__(self, name: str) -> Any:
        """``train()`` and ``eval()``, exactly where a base has them (schedule-free optimizers)."""
        if name in ("train", "eval") and "_loop" in self.__dict__ and self._loop.bases.have(name):
            return partial(self._loop.switch, name)
        hint = ": it has several bases, opt.bases" if name == "base" else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    # ------------------------------------------------------------------ the rest of torch.optim's interface

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base optimizer."""
        self._loop.bases.refuse_several("add_param_group()")
        steps = self.steps
        self.base.add_param_group(param_group)
        try:
            self._loop.bases.refuse_groups()
            self.parts.check_bases(self._loop.bases)
        except ValueError:
            self.base.param_groups.pop()
            raise
        self._loop.bases.set_steps(steps)
        self._loop.note_start()

    def state_dict(self) -> dict[str, Any]:
        """The state after the last step taken, in torch's standard layout.

        The base optimizer's, the method's own buffers and the step count. Not inside ``perturbed()``, where the model's
        weights are not those of any step.
        """
        self._loop.step.expect("state_dict()", *SETTLED)
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        saved = _checkpoint.save(self._loop.bases, self._loop.memory)
        return _checkpoint.hooked(self, self._optimizer_state_dict_post_hooks, saved)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` gave, or a state of the base optimizer alone; a prepared step is dropped."""
        self._loop.step.expect("load_state_dict()", Phase.IDLE, Phase.CLEANED, Phase.READY)
        state_dict = _checkpoint.hooked(self, self._optimizer_load_state_dict_pre_hooks, state_dict.copy())
        self._loop.abandon()
        notes = () if self.parts.gate is None else self.parts.gate.start
        _checkpoint.load(state_dict, self._loop.bases, self._loop.memory, self.parts.remembers, notes)
        self._loop.note_start()
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __getstate__(self) -> dict[str, Any]:
        """Like torch's own optimizers, copies and pickles leave hooks behind."""
        return {"_loop": self._loop, "defaults": self.defaults}

    def __repr__(self) -> str:
        filled = {field.name: getattr(self.parts, field.name) for field in fields(self.parts)}
        slots = [f"{name}={part!r}" for name, part in filled.items() if part is not None]
        return f"{type(self).__name__}({', '.join(slots)})\naround " + "\nand ".join(map(repr, self.bases))
